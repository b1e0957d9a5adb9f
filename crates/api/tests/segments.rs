//! Segments by name, between attachments to a service of this process.

use std::sync::Arc;

use isthmus::{Attachment, Error, Kind};
use isthmus_host::{Config, Service};

fn service(dir: &std::path::Path) -> Service {
    let config = Config { host_name: "host".into(), ..Config::new(dir, 16 << 20) };
    Service::start(config, Arc::new(|_| ())).unwrap()
}

#[test]
fn what_one_process_writes_another_reads() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path());
    let [one, two] = [(); 2].map(|()| Attachment::at(service.attach_socket()).unwrap());
    assert_eq!(one.member().unwrap().name, "host");
    let made = one.segment("board").or_create(1000).unwrap();
    let opened = two.segment("board").or_create(5).unwrap();
    assert!(made.is_new() && !opened.is_new() && opened.len() == 1000);
    made.set(10, [1.5_f32, 2.5]).unwrap();
    assert_eq!(opened.get::<[f32; 2]>(10).unwrap(), [1.5, 2.5]);
    made.write(996, b"last").unwrap();
    let mut bytes = [0; 4];
    opened.read(996, &mut bytes).unwrap();
    assert_eq!(&bytes, b"last");
    let word = opened.word(64).unwrap();
    assert_eq!(
        (word.fetch_add(3), word.swap(9), word.compare_exchange(8, 1), word.load()),
        (0, 3, Err(9), 9)
    );
    assert_eq!(made.word(64).unwrap().load(), 9);
    let seen: Vec<_> = two.segments().into_iter().map(|o| (o.name, o.opens)).collect();
    assert_eq!(seen, [("board".to_owned(), 2)]);
    two.unlink(Kind::Segment, "board").unwrap();
    assert!(matches!(two.segment("board").open(), Err(Error::NotFound(_))));
    assert_eq!(made.get::<f32>(10).unwrap(), 1.5, "it lives on where it is open");
}

#[test]
fn many_values_are_copied_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path());
    let [one, two] = [(); 2].map(|()| Attachment::at(service.attach_socket()).unwrap());
    let values: Vec<[u16; 3]> = (0..600).map(|i| [i, i + 1, 7]).collect();
    let many = one.segment("many").create(3603).unwrap();
    many.set_all(3, &values).unwrap();
    let mut found = vec![[0; 3]; 600];
    two.segment("many").open().unwrap().get_all(3, &mut found).unwrap();
    assert!(found == values && many.get::<u8>(5).unwrap() == 1);
    many.set_all(3603, &[[0_u8; 0]; 9]).unwrap();
    assert!(matches!(many.set_all(4, &values), Err(Error::OutOfBounds { len: 3600, .. })));
    assert!(matches!(many.get_all(4, &mut found), Err(Error::OutOfBounds { len: 3600, .. })));
    assert_eq!(many.get::<u8>(3).unwrap(), 0, "nothing of it was written");
}

#[test]
fn mistakes_are_errors_that_name_the_segment() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path());
    let here = Attachment::at(service.attach_socket()).unwrap();
    let made = here.segment("s").create(64).unwrap();
    let text = made.set(60, 1_u64).unwrap_err().to_string();
    assert_eq!(text, "8 bytes at offset 60 are not inside the 64 bytes of segment 's'");
    assert!(matches!(made.word(4), Err(Error::OutOfBounds { .. })), "not at a multiple of eight");
    assert!(matches!(here.segment("s").create(1), Err(Error::Exists(_))));
    assert!(matches!(here.segment("none").open(), Err(Error::NotFound(_))));
    assert!(matches!(made.shrink(65), Err(Error::Invalid(_))));
    assert!(matches!(here.segment("huge").create(1 << 40), Err(Error::Full(_))));
    let read = here.segment("s").open_to_read().unwrap();
    assert_eq!(read.get::<u64>(0).unwrap(), 0);
    assert!(matches!(read.set(0, 1_u8), Err(Error::ReadOnly { .. })));
    assert!(matches!(read.write(0, b"x"), Err(Error::ReadOnly { .. })));
    assert!(matches!(read.word(0), Err(Error::ReadOnly { .. })));
    assert!(matches!(Attachment::at(dir.path().join("nobody")), Err(Error::Attach(_))));
}
