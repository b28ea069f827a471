//! A thin HTTP/1.1 client: one connection, one request at a time, a source address of its own, a deadline on
//! everything. It takes only replies whose end is certain (Content-Length, or a status that has no body), so a reply
//! cut short is never mistaken for a whole one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout_at;

/// Longest head that is read.
const MAX_HEAD: usize = 64 << 10;
/// Longest body that is read.
const MAX_BODY: usize = 1 << 20;
/// Fields of a head at most.
const MAX_FIELDS: usize = 64;

/// Why there was no reply. Each is counted by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Nobody listens there.
    Refused,
    /// The connection was not established in time.
    ConnectTimeout,
    /// The source address or its ports could not be had.
    NoAddress,
    /// This process ran out of file descriptors.
    NoDescriptor,
    /// The connection was reset.
    Reset,
    /// The connection was closed before the first byte of a reply.
    Closed,
    /// The connection was closed within a reply.
    Truncated,
    /// The reply was not complete in time.
    Timeout,
    /// What came is no reply of the kind that this client takes.
    Malformed,
    /// Any other error of the network.
    Network,
}

impl Failure {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Failure::Refused => "connect: refused",
            Failure::ConnectTimeout => "connect: timeout",
            Failure::NoAddress => "connect: no source address",
            Failure::NoDescriptor => "connect: no file descriptor",
            Failure::Reset => "connection reset",
            Failure::Closed => "closed before the reply",
            Failure::Truncated => "closed within the reply",
            Failure::Timeout => "reply: timeout",
            Failure::Malformed => "reply: malformed",
            Failure::Network => "network error",
        }
    }

    fn of(error: &io::Error) -> Failure {
        const EMFILE: i32 = 24;
        const ENFILE: i32 = 23;
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Refused,
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Failure::NoAddress,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
                Failure::Reset
            }
            io::ErrorKind::TimedOut => Failure::Timeout,
            _ if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) => Failure::NoDescriptor,
            _ => Failure::Network,
        }
    }
}

/// A complete reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Header fields in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// The first value of a header; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether the server said that it closes the connection.
    pub fn closes(&self) -> bool {
        self.header("connection")
            .is_some_and(|value| value.split(',').any(|option| option.trim().eq_ignore_ascii_case("close")))
    }
}

/// A parsed head: the reply without its body, and where the body lies.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// The reply, its body still empty.
    pub reply: Reply,
    /// Bytes of the head.
    pub length: usize,
    /// Bytes of the body.
    pub body_length: usize,
}

/// Reads the head of a reply; `None` if it is not complete yet.
pub fn parse_head(bytes: &[u8]) -> Result<Option<Head>, Failure> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        _ => return Err(Failure::Malformed),
    };
    let status = parsed.code.ok_or(Failure::Malformed)?;
    let mut headers = Vec::with_capacity(parsed.headers.len());
    let mut content_length = None;
    for field in parsed.headers.iter() {
        let value = std::str::from_utf8(field.value).map_err(|_| Failure::Malformed)?;
        let name = field.name.to_ascii_lowercase();
        if name == "transfer-encoding" {
            return Err(Failure::Malformed);
        }
        if name == "content-length" {
            let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let told: usize = if digits { value.parse().map_err(|_| Failure::Malformed)? } else { MAX_BODY + 1 };
            if told > MAX_BODY || content_length.is_some_and(|before| before != told) {
                return Err(Failure::Malformed);
            }
            content_length = Some(told);
        }
        headers.push((name, value.to_owned()));
    }
    let body_length = match (status, content_length) {
        (100..200 | 204 | 304, _) => 0,
        (_, Some(length)) => length,
        // Without a length the body would end with the connection, and a cut one would look whole.
        (_, None) => return Err(Failure::Malformed),
    };
    Ok(Some(Head { reply: Reply { status, headers, body: Vec::new() }, length, body_length }))
}

/// A client's side of one connection, opened when it is first needed and again when it was lost.
pub struct Line {
    /// The address to come from; the system's choice if `None`.
    source: Option<IpAddr>,
    target: SocketAddr,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Line {
    /// A line from `source` to `target`, not connected yet.
    pub fn new(source: Option<IpAddr>, target: SocketAddr) -> Line {
        Line { source, target, stream: None, buffer: Vec::new() }
    }

    /// Where it leads.
    pub fn target(&self) -> SocketAddr {
        self.target
    }

    /// Leads it elsewhere; closes it if that is another place.
    pub fn turn_to(&mut self, target: SocketAddr) {
        if target != self.target {
            self.hang_up();
            self.target = target;
        }
    }

    /// Closes it, until it is needed again.
    pub fn hang_up(&mut self) {
        self.stream = None;
        self.buffer = Vec::new();
    }

    /// Sends one request, as finished bytes, and reads its reply. After a failure the connection is closed; whether the
    /// request was heard is then unknown.
    pub async fn call(&mut self, request: &[u8], deadline: Instant) -> Result<Reply, Failure> {
        if self.stream.is_none() {
            let connected = timeout_at(deadline.into(), connect(self.source, self.target)).await;
            let stream = connected.map_err(|_| Failure::ConnectTimeout)?.map_err(|error| Failure::of(&error))?;
            self.stream = Some(stream);
        }
        let Some(stream) = self.stream.as_mut() else { return Err(Failure::Network) };
        let replied = timeout_at(deadline.into(), exchange(stream, &mut self.buffer, request)).await;
        let result = replied.unwrap_or(Err(Failure::Timeout));
        if result.as_ref().map_or(true, Reply::closes) {
            self.hang_up();
        }
        result
    }
}

async fn connect(source: Option<IpAddr>, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = if target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(source) = source {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    let stream = socket.connect(target).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn exchange(stream: &mut TcpStream, buffer: &mut Vec<u8>, request: &[u8]) -> Result<Reply, Failure> {
    buffer.clear();
    stream.write_all(request).await.map_err(|error| Failure::of(&error))?;
    loop {
        let Some(head) = parse_head(buffer)? else {
            fill(stream, buffer).await?;
            continue;
        };
        if (100..200).contains(&head.reply.status) {
            // An interim reply; the real one follows.
            buffer.drain(..head.length);
            continue;
        }
        let end = head.length + head.body_length;
        while buffer.len() < end {
            fill(stream, buffer).await?;
        }
        if buffer.len() > end {
            // Nobody asked for more.
            return Err(Failure::Malformed);
        }
        let mut reply = head.reply;
        reply.body = buffer[head.length..end].to_vec();
        return Ok(reply);
    }
}

async fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<(), Failure> {
    buffer.reserve(1024);
    match stream.read_buf(buffer).await {
        Ok(0) if buffer.is_empty() => Err(Failure::Closed),
        Ok(0) => Err(Failure::Truncated),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::of(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<Head>, Failure> {
        parse_head(text.as_bytes())
    }

    #[test]
    fn a_head_is_read_once_it_is_complete_and_never_before() {
        let text = "HTTP/1.1 410 Gone\r\nContent-Length: 2\r\nRetry-After: 1\r\n\r\n{}";
        let whole = text.len() - 2;
        for end in 0..whole {
            assert_eq!(head(&text[..end]), Ok(None), "{end} bytes");
        }
        let head = head(text).unwrap().unwrap();
        assert_eq!((head.reply.status, head.length, head.body_length), (410, whole, 2));
        assert_eq!(head.reply.header("retry-after"), Some("1"));
        assert!(!head.reply.closes());
    }

    #[test]
    fn a_reply_whose_end_is_uncertain_is_malformed() {
        for fields in [
            "",
            "Content-Length: x\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: \r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: 99999999999999999999999\r\n",
            "Content-Length: 1048577\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
            assert_eq!(head(&text), Err(Failure::Malformed), "{fields:?}");
        }
        assert_eq!(head("SSH-2.0-OpenSSH\r\n\r\n"), Err(Failure::Malformed));
        assert_eq!(parse_head(&vec![b'x'; MAX_HEAD]), Err(Failure::Malformed));
    }

    #[test]
    fn replies_without_a_body_need_no_length() {
        for status in [100, 204, 304] {
            let head = head(&format!("HTTP/1.1 {status} X\r\n\r\n")).unwrap().unwrap();
            assert_eq!(head.body_length, 0);
        }
        // A 304 may tell the length of what it does not send.
        assert_eq!(head("HTTP/1.1 304 X\r\nContent-Length: 9\r\n\r\n").unwrap().unwrap().body_length, 0);
    }

    #[test]
    fn a_closing_connection_is_recognised_in_any_spelling() {
        for (value, closes) in [("close", true), ("Keep-Alive, Close", true), ("keep-alive", false), ("closed", false)]
        {
            let text = format!("HTTP/1.1 200 OK\r\nConnection: {value}\r\nContent-Length: 0\r\n\r\n");
            assert_eq!(head(&text).unwrap().unwrap().reply.closes(), closes, "{value}");
        }
    }
}
