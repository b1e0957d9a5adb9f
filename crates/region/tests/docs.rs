//! `docs/region-format.md` says what the code does: its tables are compared with the format's list of fields.
//!
//! `UPDATE_DOCS=1 cargo test -p isthmus-region --test docs` writes the tables.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use isthmus_region::format::{FIELDS, Field};

fn table(structure: &str) -> String {
    let mut text = String::from("| offset | bytes | field | writer | meaning |\n|---:|---:|---|---|---|\n");
    for Field { name, offset, bytes, writer, doc, .. } in FIELDS.iter().filter(|f| f.structure == structure) {
        writeln!(text, "| {offset} | {bytes} | `{name}` | {writer} | {doc} |").unwrap();
    }
    text
}

#[test]
fn every_field_of_the_format_is_documented_with_its_writer() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/region-format.md");
    let mut text = std::fs::read_to_string(&path).expect("docs/region-format.md");
    let structures: BTreeSet<&str> = FIELDS.iter().map(|f| f.structure).collect();
    for structure in structures {
        let (begin, end) = (format!("<!-- fields: {structure} -->\n"), "<!-- end -->");
        let from = text.find(&begin).unwrap_or_else(|| panic!("no table for `{structure}`")) + begin.len();
        let to = from + text[from..].find(end).expect("an end mark");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            text.replace_range(from..to, &table(structure));
        } else {
            assert_eq!(&text[from..to], table(structure), "the table of `{structure}` is out of date");
        }
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
}
