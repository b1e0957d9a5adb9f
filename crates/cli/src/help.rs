//! Help as people read it: the lines of a paragraph in the source are one line of text, which is broken where the
//! reader's terminal ends. Lines that are indented are examples and stay as they are.

use clap::Command;

/// Joins the lines of all descriptions of `command` and of all commands below it.
pub(crate) fn reflow(command: Command) -> Command {
    let text = command.get_long_about().map(|text| joined(&text.to_string()));
    let command = match text {
        Some(text) => command.long_about(text),
        None => command,
    };
    command.mut_subcommands(reflow)
}

fn joined(text: &str) -> String {
    let mut out = String::new();
    let mut open = false;
    for line in text.lines() {
        let goes_on = open && !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if goes_on { ' ' } else { '\n' });
        }
        out.push_str(line);
        open = !line.is_empty() && !line.starts_with(' ');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_joined_and_examples_are_not() {
        assert_eq!(joined("a\nb\n\nc:\n\n    d\n    e\n\nf\ng"), "a b\n\nc:\n\n    d\n    e\n\nf g");
    }

    /// Each command with all below it, and the words that lead there.
    fn all(command: &Command, path: &str) -> Vec<(String, Command)> {
        let path = format!("{path} {}", command.get_name());
        let below = command.get_subcommands().flat_map(|below| all(below, &path));
        [(path.clone(), command.clone())].into_iter().chain(below).collect()
    }

    #[test]
    fn no_line_of_a_description_is_broken_before_its_end() {
        for (path, command) in all(&crate::command(), "") {
            let width = 80;
            let help = command.term_width(width).render_long_help().to_string();
            let description = help.split("Usage:").next().unwrap();
            let lines: Vec<&str> = description.lines().collect();
            for pair in lines.windows(2) {
                assert!(pair[0].len() <= width, "{path}: too long: {}", pair[0]);
                // An example that was wrapped goes on at its own indent, or at none.
                if pair[0].starts_with(' ') || pair[0].is_empty() || pair[1].is_empty() {
                    continue;
                }
                let next = pair[1].split(' ').next().unwrap();
                assert!(pair[0].len() + 1 + next.len() > width, "{path}: broken early: {}", pair[0]);
            }
            let source = command_about(&crate::command(), &path);
            for example in source.lines().filter(|line| line.starts_with("    ")) {
                assert!(example.len() <= width - 2, "{path}: {example}");
            }
        }
    }

    fn command_about(root: &Command, path: &str) -> String {
        let mut command = root;
        for name in path.split_whitespace().skip(1) {
            command = command.find_subcommand(name).unwrap();
        }
        command.get_long_about().map(ToString::to_string).unwrap_or_default()
    }
}
