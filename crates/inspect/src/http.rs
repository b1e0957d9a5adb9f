//! A minimal web server for one page: HTTP/1.1, one request per connection, `GET` and `HEAD`.
//!
//! A slow, silent or greedy client does no harm: the length of a request, its time, and the number of connections at once
//! are limited, and the server shares nothing with the service but the closure that makes the page.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::error::{Error, Result};
use isthmus_region::shared_by_threads::Count;

/// Where the page is.
const PATH: &str = "/metrics";
/// Longest request, its headers included.
const MOST_REQUEST: usize = 8 << 10;
/// Time for a whole request and its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at once; further ones are answered with 503.
const MOST_CONNECTIONS: u64 = 8;

/// Makes the page. It is called on threads of the server, perhaps on several at once.
pub type Page = Arc<dyn Fn() -> Answer + Send + Sync>;

/// What an answer consists of.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The type of the content.
    pub content_type: &'static str,
    /// The content, or why there is none.
    pub content: std::result::Result<String, String>,
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `page` at `address`, which no other machine may be able to reach unless `remote`.
    ///
    /// # Errors
    /// [`Error::Remote`], [`Error::Listen`].
    pub fn start(address: &str, remote: bool, page: Page) -> Result<Self> {
        let failed = |source| Error::Listen { address: address.to_owned(), source };
        let all: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        if let Some(other) = all.iter().find(|a| !a.ip().to_canonical().is_loopback() && !remote) {
            return Err(Error::Remote { address: *other });
        }
        let listener = TcpListener::bind(&all[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let bell = Arc::new(bell);
        let stop = Arc::clone(&bell);
        let thread = std::thread::Builder::new()
            .name("isthmus-metrics".into())
            .spawn(move || listen(&listener, &stop, &page))
            .map_err(failed)?;
        Ok(Self { address, bell, thread: Some(thread) })
    }

    /// Where the page is.
    pub fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(listener: &TcpListener, stop: &OwnedFd, page: &Page) {
    let busy = Arc::new(Count::new(0));
    loop {
        let mut waits = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match rustix::event::poll(&mut waits, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !waits[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) =>
            {
                continue;
            }
            // Out of descriptors: clients go on waiting, and this loop must not spin meanwhile.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        // Only this thread adds, so the limit is not exceeded.
        if busy.get() >= MOST_CONNECTIONS {
            refuse(&stream);
            continue;
        }
        busy.add(1);
        let place = Place(Arc::clone(&busy));
        let page = Arc::clone(page);
        let serve = move || {
            let _place = place;
            // A client that has gone needs no answer.
            let _ = serve(stream, &page);
        };
        // Without a thread the connection is closed, and its place becomes free.
        let _ = std::thread::Builder::new().name("isthmus-metrics".into()).spawn(serve);
    }
}

/// One of the connections at once.
struct Place(Arc<Count>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

fn refuse(mut stream: &TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = stream.write(head("503 Service Unavailable", "text/plain", 0).as_bytes());
    }
}

fn head(status: &str, content_type: &str, len: usize) -> String {
    let more = match &status[..3] {
        "405" => "Allow: GET, HEAD\r\n",
        "503" => "Retry-After: 1\r\n",
        _ => "",
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\n{more}Connection: close\r\n\r\n"
    )
}

fn serve(mut stream: TcpStream, page: &Page) -> std::io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    stream.set_nonblocking(false)?;
    let request = receive(&mut stream, deadline)?;
    let (method, status, answer) = respond(request.as_deref(), page);
    let text = answer.content.unwrap_or_else(|why| why);
    let mut bytes = head(status, answer.content_type, text.len()).into_bytes();
    if method != Method::Head {
        bytes.extend_from_slice(text.as_bytes());
    }
    send(&mut stream, &bytes, deadline)?;
    // Unread bytes would turn the close into a reset, and the answer might be lost.
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut rest = [0; 1024];
    let mut left = MOST_REQUEST * 8;
    while left > 0 {
        wait(&stream, deadline)?;
        match stream.read(&mut rest)? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

/// Limits the next call to the time that is left.
fn wait(stream: &TcpStream, deadline: Instant) -> std::io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

/// The request's head, or the status that says why there is none.
fn receive(
    stream: &mut TcpStream,
    deadline: Instant,
) -> std::io::Result<std::result::Result<String, &'static str>> {
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            bytes.truncate(end);
            return Ok(String::from_utf8(bytes).map_err(|_| "400 Bad Request"));
        }
        if bytes.len() >= MOST_REQUEST {
            return Ok(Err("431 Request Header Fields Too Large"));
        }
        wait(stream, deadline)?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(Err("400 Bad Request")),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        wait(stream, deadline)?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Get,
    Head,
    Other,
}

fn respond(request: std::result::Result<&str, &&'static str>, page: &Page) -> (Method, &'static str, Answer) {
    let plain =
        |text: &str| Answer { content_type: "text/plain; charset=utf-8", content: Ok(text.to_owned()) };
    let line = match request {
        Ok(text) => text.lines().next().unwrap_or_default(),
        Err(status) => return (Method::Other, status, plain("")),
    };
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return (Method::Other, "400 Bad Request", plain("")) };
    if !version.starts_with("HTTP/1.") {
        return (Method::Other, "505 HTTP Version Not Supported", plain(""));
    }
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        _ => return (Method::Other, "405 Method Not Allowed", plain("")),
    };
    match target.split('?').next() {
        Some(PATH) => {
            let answer = page();
            let status = if answer.content.is_ok() { "200 OK" } else { "500 Internal Server Error" };
            (method, status, answer)
        }
        Some("/") => (method, "200 OK", plain("isthmus: metrics of this region are at /metrics\n")),
        _ => (method, "404 Not Found", plain("only /metrics is here\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        let page = || Answer { content_type: "text/x", content: Ok("hello\n".into()) };
        Server::start("127.0.0.1:0", false, Arc::new(page)).unwrap()
    }

    fn ask(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_get_what_they_ask_for() {
        let server = server();
        let page = ask(&server, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 6\r\n"),
            "{page}"
        );
        assert!(page.ends_with("\r\n\r\nhello\n"));
        let page = ask(&server, "HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(page.contains("Content-Length: 6") && page.ends_with("\r\n\r\n"));
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "200"),
            ("GET /other HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "505"),
            ("nonsense\r\n\r\n", "400"),
            ("GET /met\u{e4} HTTP/1.1 x\r\n\r\n", "400"),
        ] {
            assert!(ask(&server, request).starts_with(&format!("HTTP/1.1 {status} ")), "{request}");
        }
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(MOST_REQUEST));
        assert!(ask(&server, &long).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn slow_and_silent_clients_hold_up_no_others() {
        let server = server();
        let mut held: Vec<TcpStream> =
            (0..MOST_CONNECTIONS - 1).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        held[0].write_all(b"GET /met").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(ask(&server, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("hello\n"));
        std::thread::sleep(Duration::from_millis(50));
        // One above the limit is refused at once.
        held.push(TcpStream::connect(server.address()).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        let mut more = TcpStream::connect(server.address()).unwrap();
        let mut answer = String::new();
        more.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        // Once their time runs out, or they disconnect, there is room again.
        drop(held);
        let begun = std::time::Instant::now();
        // A refusal may come as a reset, since what was asked is not read.
        let again = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(server.address())?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        while !again().is_ok_and(|answer| answer.ends_with("hello\n")) {
            assert!(begun.elapsed() < Duration::from_secs(20), "there is no room again");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn the_time_of_a_connection_is_limited() {
        let server = server();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let begin = Instant::now();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() && begin.elapsed() < PATIENCE * 2);
    }

    #[test]
    fn other_machines_may_connect_only_on_request() {
        let page: Page = Arc::new(|| Answer { content_type: "", content: Ok(String::new()) });
        assert!(matches!(Server::start("0.0.0.0:0", false, Arc::clone(&page)), Err(Error::Remote { .. })));
        assert!(Server::start("0.0.0.0:0", true, Arc::clone(&page)).is_ok());
        assert!(matches!(Server::start("no address", false, page), Err(Error::Listen { .. })));
    }
}
