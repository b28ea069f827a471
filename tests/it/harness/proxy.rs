//! A TCP proxy between two of the processes under test, which can be told to misbehave.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the proxy does with what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Carries everything.
    Pass,
    /// Carries requests, swallows replies: the server acts and the client never hears.
    DropReplies,
    /// Holds requests back; they are carried when the mode changes.
    HoldRequests,
    /// Accepts connections and closes them at once; closes those that are open.
    Refuse,
}

/// A running proxy. It ends with the runtime of the test.
pub struct Proxy {
    /// Where clients connect.
    pub port: u16,
    mode: Arc<watch::Sender<Mode>>,
    swallowed: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts one before the server on this port of loopback.
    pub async fn before(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(watch::channel(Mode::Pass).0);
        let (swallowed, held) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let proxy = Proxy { port, mode: Arc::clone(&mode), swallowed: Arc::clone(&swallowed), held: Arc::clone(&held) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut refusing = mode.subscribe();
                let carried = carry(client, server, Arc::clone(&mode), Arc::clone(&swallowed), Arc::clone(&held));
                tokio::spawn(async move {
                    // Both streams close when this ends, whichever way.
                    tokio::select! {
                        _ = carried => {}
                        _ = refusing.wait_for(|mode| *mode == Mode::Refuse) => {}
                    }
                });
            }
        });
        proxy
    }

    /// From now on, for open connections too.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Replies swallowed so far (reads, not messages).
    pub fn swallowed(&self) -> usize {
        self.swallowed.load(Ordering::SeqCst)
    }

    /// Requests held back so far (reads, not messages).
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Waits until something was swallowed or held back since the proxy was made; fails after 20 s.
    pub async fn until_it_misbehaved(&self) {
        for _ in 0..2_000 {
            if self.swallowed() + self.held() > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nothing was swallowed or held back");
    }
}

async fn carry(
    client: TcpStream,
    server: u16,
    mode: Arc<watch::Sender<Mode>>,
    swallowed: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], server))).await?;
    _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = async {
        let mut modes = mode.subscribe();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = from_client.read(&mut buffer).await?;
            if length == 0 {
                return to_server.shutdown().await;
            }
            if *modes.borrow() == Mode::HoldRequests {
                held.fetch_add(1, Ordering::SeqCst);
                _ = modes.wait_for(|mode| *mode != Mode::HoldRequests).await;
            }
            to_server.write_all(&buffer[..length]).await?;
        }
    };
    let replies = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = from_server.read(&mut buffer).await?;
            if length == 0 {
                return to_client.shutdown().await;
            }
            if *mode.borrow() == Mode::DropReplies {
                swallowed.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            to_client.write_all(&buffer[..length]).await?;
        }
    };
    let (sent, told) = tokio::join!(requests, replies);
    sent.and(told)
}
