//! The counters of a service for Prometheus: brings the service's region and the page together.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use isthmus_host::Service;
use isthmus_inspect::http::{Answer, Server};
use isthmus_inspect::openmetrics::{CONTENT_TYPE, Exporter};
use isthmus_inspect::target::Target;
use isthmus_region::reader::Reader;

/// Serves the counters of `service` at `address`.
pub(crate) fn start(
    service: &Service,
    address: &str,
    remote: bool,
) -> Result<Server, Box<dyn Error + Send + Sync>> {
    let files = service.files();
    let mut reader = Reader::new(files.file(0)?)?;
    for index in 1..service.region().shape().files {
        reader.add(files.file(index)?)?;
    }
    let target = Target { reader, name: "the region".into(), service: None };
    // One survey at a time: a page is cheap where the region is sound, but many clients must not keep the service's processor busy.
    let state = Mutex::new((target, Exporter::default()));
    let page = move || {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let (target, exporter) = &mut *state;
        match target.survey() {
            Ok((survey, faults)) => {
                Answer { content_type: CONTENT_TYPE, content: Ok(exporter.text(&survey, &faults)) }
            }
            Err(e) => Answer { content_type: "text/plain; charset=utf-8", content: Err(format!("{e}\n")) },
        }
    };
    Ok(Server::start(address, remote, Arc::new(page))?)
}
