//! How failed commands report: one line with the whole chain of causes and status 125; or status 2 for a mistake
//! on the command line.

use std::error::Error;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue};

/// Exit status of isthmus's own failures.
const FAILED: i32 = 125;

/// Exit status of a mistake on the command line.
pub(crate) const USAGE: i32 = 2;

/// Drops the parser's suggestion of a command if it is not similar to the word that was given.
pub(crate) fn drop_far_suggestion(mistake: &mut clap::Error) {
    let words = |value: Option<&ContextValue>| match value {
        Some(ContextValue::String(word)) => vec![word.clone()],
        Some(ContextValue::Strings(words)) => words.clone(),
        _ => Vec::new(),
    };
    let asked = words(mistake.get(ContextKind::InvalidSubcommand));
    let near =
        |word: &String| asked.iter().any(|asked| changes(asked, word) <= asked.len().max(word.len()) / 2);
    if !words(mistake.get(ContextKind::SuggestedSubcommand)).iter().any(near) {
        mistake.remove(ContextKind::SuggestedSubcommand);
    }
}

/// How many letters must be changed, added or removed to turn `a` into `b` (Levenshtein).
fn changes(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let changed = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

/// The argument parser's message, beginning as all errors do.
pub(crate) fn mistake(error: &clap::Error) -> String {
    let said = error.render().to_string();
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    // As mpirun takes it; to this program it is `-n p`.
    if said.starts_with("invalid value 'p' for '--np ") {
        return "isthmus: there is no -np here: write -n 2, or --np 2\n".into();
    }
    match error.source().and_then(|why| Some((why.to_string(), no_number(why)?))) {
        Some((why, better)) => format!("isthmus: {}", said.replacen(&why, better, 1)),
        None => format!("isthmus: {said}"),
    }
}

/// What is wrong with a word that should be a number; the standard library's texts speak of digits and types.
fn no_number(why: &(dyn Error + 'static)) -> Option<&'static str> {
    Some(match why.downcast_ref::<ParseIntError>()?.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "the number is out of range",
        _ => "it is not a whole number",
    })
}

/// The exit status of a command, after its error was printed.
pub(crate) fn status<E: Error + 'static>(outcome: Result<(), E>) -> i32 {
    let Err(error) = outcome else { return 0 };
    isthmus_region::tell!("isthmus: {}", isthmus_region::error::with_causes(&error));
    FAILED
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_commands_that_are_near_are_suggested() {
        let said = |word: &str| {
            let mut e = crate::command().try_get_matches_from(["isthmus", word]).unwrap_err();
            super::drop_far_suggestion(&mut e);
            e.render().to_string()
        };
        assert!(said("bnech").contains("'bench'") && said("rnu").contains("unrecognized"));
        assert!(!said("nosuch").contains("tip"), "{}", said("nosuch"));
        assert_eq!(
            [super::changes("bench", "bench"), super::changes("nosuch", "bench"), super::changes("", "ab")],
            [0, 4, 2]
        );
    }

    #[test]
    fn mistakes_begin_as_all_errors_do_and_name_what_is_wrong() {
        let said = |words: &[&str]| {
            let line = [&["isthmus"], words].concat();
            super::mistake(&crate::command().try_get_matches_from(line).unwrap_err())
        };
        assert!(said(&["ps", "--nosuch"]).starts_with("isthmus: unexpected argument '--nosuch'"));
        assert!(said(&["run", "-np", "2", "--", "true"]).contains("write -n 2, or --np 2"));
        let said_of_rounds = said(&["bench", "lane", "--rounds", "-1"]);
        assert!(said_of_rounds.starts_with("isthmus: invalid value '-1' for '--rounds"), "{said_of_rounds}");
        let of = |value| said(&["run", "--vms", value, "-n", "2", "--", "true"]);
        for (value, wrong) in [
            ("-1", "-1 is not in 0..=4294967295"),
            ("two", "it is not a whole number"),
            ("", "it is not a whole number"),
            ("99999999999999999999", "the number is out of range"),
        ] {
            let first = of(value).lines().next().unwrap_or_default().to_string();
            assert_eq!(first, format!("isthmus: invalid value '{value}' for '--vms <N>': {wrong}"));
        }
    }
}
