//! One client's connection: a TCP socket with the deadlines that the HTTP server does not keep, and a write buffer that
//! sends a header and its body in one piece.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};

/// Up to this much is held back until it is flushed: a reply of ordinary size leaves in one write.
const WRITE_BUFFER: usize = 64 << 10;
/// A buffer that grew beyond this is given back after use.
const KEEP_BUFFER: usize = 8 << 10;
/// When a connection is closed with input unread, so much of it is read and dropped, for so long: a reset would destroy
/// the reply on its way.
const LINGER_BYTES: usize = 1 << 20;
const LINGER: Duration = Duration::from_secs(1);

/// What a connection may take, and what it is told if it takes more before there is a request to answer.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    /// From the first byte of a request's header to its last.
    pub(super) header_deadline: Duration,
    /// Between two requests.
    pub(super) idle_timeout: Duration,
    /// For the client to take up what is written.
    pub(super) write_timeout: Duration,
    /// Header bytes of one request.
    pub(super) max_header_bytes: usize,
    /// The whole reply to a header that did not arrive in time.
    pub(super) timed_out: Vec<u8>,
    /// The whole reply to a header that is too large.
    pub(super) too_large: Vec<u8>,
    /// The whole reply to a header that cannot be read.
    pub(super) malformed: Vec<u8>,
}

const IDLE: u8 = 0;
const HEADER: u8 = 1;
const BODY: u8 = 2;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: TcpStream,
    limits: Arc<ConnectionLimits>,
    digest: Arc<SocketDigest>,
    /// Whether a header is awaited, under way, or through. Set to `BODY` and `IDLE` by the proxy.
    phase: AtomicU8,
    linger: AtomicBool,
    header_bytes: usize,
    read_deadline: Deadline,
    write_deadline: Deadline,
    buffer: Vec<u8>,
    written: usize,
}

/// A timer that costs nothing until something has to wait.
#[derive(Debug, Default)]
struct Deadline {
    runs: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// Starts it, unless it runs.
    fn start(&mut self, after: Duration) {
        if !self.runs {
            self.runs = true;
            match &mut self.timer {
                Some(timer) => timer.set(sleep(after)),
                None => self.timer = Some(Box::pin(sleep(after))),
            }
        }
    }

    fn stop(&mut self) {
        self.runs = false;
    }

    fn has_passed(&mut self, cx: &mut Context<'_>) -> bool {
        self.runs && self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
    }
}

impl Connection {
    pub(super) fn new(socket: TcpStream, peer: SocketAddr, limits: Arc<ConnectionLimits>) -> Connection {
        let digest = SocketDigest::from_raw_fd(socket.as_raw_fd());
        let _ = digest.peer_addr.set(Some(peer.into()));
        Connection {
            socket,
            limits,
            digest: Arc::new(digest),
            phase: AtomicU8::new(IDLE),
            linger: AtomicBool::new(false),
            header_bytes: 0,
            read_deadline: Deadline::default(),
            write_deadline: Deadline::default(),
            buffer: Vec::new(),
            written: 0,
        }
    }

    /// The header is through; what comes now is a body, timed by whoever reads it.
    pub(super) fn header_is_through(&self) {
        self.phase.store(BODY, Ordering::Relaxed);
    }

    /// The request is over; the next bytes are another header.
    pub(super) fn request_is_over(&self) {
        self.phase.store(IDLE, Ordering::Relaxed);
    }

    /// Input was left unread: close in a way that lets the reply arrive.
    pub(super) fn linger(&self) {
        self.linger.store(true, Ordering::Relaxed);
    }

    /// Says in one write why the connection ends, if the client can hear it.
    fn last_words(&self, reply: &[u8]) {
        let _ = self.socket.try_write(reply);
        self.linger();
    }

    fn poll_send_buffer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.buffer.len() {
            match Pin::new(&mut self.socket).poll_write(cx, &self.buffer[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(sent)) => {
                    self.written += sent;
                    self.write_deadline.stop();
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return self.poll_stuck(cx),
            }
        }
        self.written = 0;
        self.buffer.clear();
        if self.buffer.capacity() > KEEP_BUFFER {
            self.buffer = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    /// The client takes nothing: wait for it, but not for ever.
    fn poll_stuck<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.write_deadline.start(self.limits.write_timeout);
        if self.write_deadline.has_passed(cx) {
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        } else {
            Poll::Pending
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.socket).poll_read(cx, buf);
        let phase = this.phase.load(Ordering::Relaxed);
        if phase == BODY {
            return read;
        }
        match read {
            Poll::Ready(Ok(())) => {
                let came = buf.filled().len() - before;
                if phase == IDLE {
                    this.phase.store(HEADER, Ordering::Relaxed);
                    this.header_bytes = 0;
                    this.read_deadline.stop();
                }
                this.header_bytes += came;
                if this.header_bytes > this.limits.max_header_bytes {
                    this.last_words(&this.limits.too_large);
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                let limit = if phase == IDLE { this.limits.idle_timeout } else { this.limits.header_deadline };
                this.read_deadline.start(limit);
                if !this.read_deadline.has_passed(cx) {
                    return Poll::Pending;
                }
                if phase == IDLE {
                    // Nothing was asked: an end of input closes without a word.
                    return Poll::Ready(Ok(()));
                }
                this.last_words(&this.limits.timed_out);
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            failed @ Poll::Ready(Err(_)) => failed,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        // Before the header is through, only the server's own parser has something to say: a bare refusal of a request
        // that it cannot read. It is said in our words.
        if this.phase.load(Ordering::Relaxed) != BODY && buf.starts_with(b"HTTP/1.") {
            this.buffer.extend_from_slice(&this.limits.malformed);
            this.linger();
            return Poll::Ready(Ok(buf.len()));
        }
        if this.buffer.len() + buf.len() > WRITE_BUFFER {
            ready!(this.poll_send_buffer(cx))?;
        }
        if buf.len() > WRITE_BUFFER {
            return match Pin::new(&mut this.socket).poll_write(cx, buf) {
                Poll::Pending => this.poll_stuck(cx),
                ready => {
                    this.write_deadline.stop();
                    ready
                }
            };
        }
        this.buffer.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send_buffer(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_buffer(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for Connection {
    async fn shutdown(&mut self) {
        if AsyncWriteExt::shutdown(self).await.is_err() || !self.linger.load(Ordering::Relaxed) {
            return;
        }
        let drain = async {
            let mut dropped = 0;
            let mut chunk = [0; 4_096];
            while dropped < LINGER_BYTES {
                match self.socket.read(&mut chunk).await {
                    Ok(0) | Err(_) => break,
                    Ok(read) => dropped += read,
                }
            }
        };
        let _ = timeout(LINGER, drain).await;
    }
}

impl UniqueID for Connection {
    fn id(&self) -> UniqueIDType {
        self.socket.as_raw_fd()
    }
}

impl Ssl for Connection {}
impl Peek for Connection {}

impl GetTimingDigest for Connection {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Connection {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Connection {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(Arc::clone(&self.digest))
    }
}
