//! A client that writes bytes and reads replies, and sees how they came.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);

/// A connection.
pub struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
    /// In how many reads it came.
    pub reads: usize,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().into()
    }
}

impl Client {
    pub async fn try_connect(address: SocketAddr) -> std::io::Result<Client> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, unread: Vec::new() })
    }

    pub async fn send(&mut self, request: &str) -> Reply {
        self.write(request).await;
        self.reply().await
    }

    pub async fn write(&mut self, bytes: &str) {
        // The server may have closed already, having said why.
        let _ = self.stream.write_all(bytes.as_bytes()).await;
    }

    pub async fn reply(&mut self) -> Reply {
        self.read_reply(true).await
    }

    pub async fn reply_to_head(&mut self) -> Reply {
        self.read_reply(false).await
    }

    async fn read_reply(&mut self, with_body: bool) -> Reply {
        let mut reads = 0;
        let end = loop {
            if let Some(end) = self.unread.windows(4).position(|w| w == b"\r\n\r\n") {
                break end + 4;
            }
            reads += self.more().await;
        };
        let head = String::from_utf8(self.unread.drain(..end).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut reply = Reply { status, head, body: String::new(), reads };
        if !with_body || status == 304 || status == 100 {
            return reply;
        }
        let body = if reply.header("transfer-encoding").is_some() {
            self.chunks(&mut reads).await
        } else {
            let length = reply.header("content-length").map_or(0, |length| length.parse().unwrap());
            while self.unread.len() < length {
                reads += self.more().await;
            }
            self.unread.drain(..length).collect()
        };
        reply.body = String::from_utf8_lossy(&body).into_owned();
        reply.reads = reads;
        reply
    }

    async fn chunks(&mut self, reads: &mut usize) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                if let Some(end) = self.unread.windows(2).position(|w| w == b"\r\n") {
                    break end;
                }
                *reads += self.more().await;
            };
            let size = usize::from_str_radix(std::str::from_utf8(&self.unread[..end]).unwrap().trim(), 16).unwrap();
            while self.unread.len() < end + 2 + size + 2 {
                *reads += self.more().await;
            }
            body.extend_from_slice(&self.unread[end + 2..end + 2 + size]);
            self.unread.drain(..end + 2 + size + 2);
            if size == 0 {
                return body;
            }
        }
    }

    async fn more(&mut self) -> usize {
        let mut chunk = [0; 65_536];
        let read = timeout(PATIENCE, self.stream.read(&mut chunk)).await.expect("no reply in time").unwrap();
        assert!(read > 0, "closed in the middle of a reply: {:?}", String::from_utf8_lossy(&self.unread));
        self.unread.extend_from_slice(&chunk[..read]);
        1
    }

    /// Everything that still comes until the server closes.
    pub async fn rest(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.unread);
        timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await.expect("not closed in time").unwrap();
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// Whether the server closes the connection without another word.
    pub async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(timeout(Duration::from_secs(3), self.stream.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
    }
}
