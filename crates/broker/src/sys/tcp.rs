//! TCP sockets that do not wait.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with, sockopt,
};

/// The connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;

fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Listens on a port of all addresses, IPv4 included. A kernel without IPv6 has only IPv4.
pub(crate) fn listen(port: u16) -> io::Result<OwnedFd> {
    let (listener, all) = match socket(AddressFamily::INET6) {
        Ok(listener) => {
            sockopt::set_ipv6_v6only(&listener, false)?;
            (listener, IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED))
        }
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            (socket(AddressFamily::INET)?, IpAddr::from(std::net::Ipv4Addr::UNSPECIFIED))
        }
        Err(error) => return Err(error),
    };
    // Connections of a broker before this one may still be in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&listener, true)?;
    rustix::net::bind(&listener, &SocketAddr::new(all, port))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Accepts a connection; `None` if there is none.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Begins to connect. The socket becomes writable when that has succeeded or failed ([`connected`]). `scope`:
/// the interface of link-local addresses.
pub(crate) fn connect(local: IpAddr, remote: IpAddr, port: u16, scope: u32) -> io::Result<OwnedFd> {
    let address = |ip: IpAddr, port| match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope))
        }
        ip => SocketAddr::new(ip, port),
    };
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family)?;
    rustix::net::bind(&socket, &address(local, 0))?;
    match rustix::net::connect(&socket, &address(remote, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether a connection was made.
pub(crate) fn connected(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::socket_error(socket)??)
}

/// The addresses of a connection: this end's, and the other end's. IPv4 addresses are given as such.
pub(crate) fn ends(socket: &OwnedFd) -> io::Result<(IpAddr, IpAddr)> {
    let socket = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
    let ip = |address: SocketAddr| address.ip().to_canonical();
    Ok((ip(socket.local_addr()?), ip(socket.peer_addr()?)))
}

/// Receives bytes; `None` if there are none, 0 at the end.
pub(crate) fn receive(socket: &OwnedFd, room: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::net::recv(socket, room, RecvFlags::DONTWAIT) {
        Ok((_, len)) => Ok(Some(len)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends some of the bytes, as many as there is room for.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    match rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(len) => Ok(len),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Sets a connection up for short messages: they leave at once, and a peer that does not acknowledge them for
/// so many milliseconds is gone.
pub(crate) fn for_messages(socket: &OwnedFd, patience_ms: u32) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    Ok(sockopt::set_tcp_user_timeout(socket, patience_ms)?)
}

/// Sends bytes, which fit into the empty buffer of a new connection.
pub(crate) fn send_all(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let sent = rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn wait(socket: &OwnedFd, events: rustix::event::PollFlags) {
        let mut fds = [rustix::event::PollFd::new(socket, events)];
        rustix::event::poll(&mut fds, None).unwrap();
    }

    #[test]
    fn both_ends_of_a_connection_see_each_others_addresses() {
        use rustix::event::PollFlags;
        let listener = listen(0).unwrap();
        let copy = std::net::TcpListener::from(listener.try_clone().unwrap());
        let port = copy.local_addr().unwrap().port();
        drop(copy);
        assert!(accept(&listener).unwrap().is_none());
        let (here, there) =
            (Ipv4Addr::new(127, 0, 0, 2).into(), Ipv4Addr::new(127, 0, 0, 3).into());
        let caller = connect(here, there, port, 0).unwrap();
        wait(&caller, PollFlags::OUT);
        connected(&caller).unwrap();
        wait(&listener, PollFlags::IN);
        let called = accept(&listener).unwrap().unwrap();
        assert_eq!(ends(&caller).unwrap(), (here, there));
        assert_eq!(ends(&called).unwrap(), (there, here));
        let mut room = [0; 8];
        assert_eq!(receive(&called, &mut room).unwrap(), None);
        send_all(&caller, b"bytes").unwrap();
        wait(&called, PollFlags::IN);
        assert_eq!(receive(&called, &mut room).unwrap(), Some(5));
        drop(caller);
        wait(&called, PollFlags::IN);
        assert_eq!(receive(&called, &mut room).unwrap(), Some(0));
        // A port that is taken, so that nobody else can listen there meanwhile.
        let taken = socket(AddressFamily::INET).unwrap();
        rustix::net::bind(&taken, &SocketAddr::new(there, 0)).unwrap();
        let taken = std::net::TcpStream::from(taken);
        let refused =
            connect(here, there, taken.local_addr().unwrap().port(), 0).and_then(|socket| {
                wait(&socket, PollFlags::OUT);
                connected(&socket)
            });
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
