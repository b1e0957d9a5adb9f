//! Channels between contexts of several attachments, all in this process.

mod common;

use common::{SOON, World, pair};

#[test]
fn bytes_go_both_ways_and_end() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let peers = a.peers();
    assert_eq!(peers.len(), 1);
    assert_eq!((peers[0].client, &*peers[0].host, peers[0].address), (2, "host", b.address()));
    let (here, there) = pair(&a, &b);
    assert_eq!((here.peer().client, there.peer().client), (2, 1));
    assert_eq!(here.write(b"hello").unwrap(), 5);
    let mut into = [0; 16];
    assert_eq!(there.read(&mut into).unwrap(), 5);
    assert_eq!(&into[..5], b"hello");
    assert_eq!(there.read(&mut into).unwrap(), 0, "nothing is there, and it has not ended");
    there.write_all(b"and back", SOON).unwrap();
    here.read_exact(&mut into[..8], SOON).unwrap();
    assert_eq!(&into[..8], b"and back");
    here.write_all(b"last", SOON).unwrap();
    here.close();
    there.read_exact(&mut into[..4], SOON).unwrap();
    assert_eq!(&into[..4], b"last");
    let error = there.read(&mut into).unwrap_err();
    assert!(matches!(error, isthmus_ivc::Error::End { .. }), "{error}");
    let error = there.write(b"x").unwrap_err();
    assert!(matches!(error, isthmus_ivc::Error::Closed { .. }), "{error}");
}
