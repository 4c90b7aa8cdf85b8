//! Netlink messages: parses requests, builds answers (`linux/netlink.h`).

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct nlattr`.
const ATTRIBUTE: usize = 4;
/// The longest datagram of an answer, for which programs have room.
const DATAGRAM_MAX: usize = 4096;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The messages of a datagram, each with its header. A message that is cut off at the end is left
/// out.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(rest, 0)?).ok()?;
        let message = rest.get(..length).filter(|message| message.len() >= HEADER)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The type of a message.
pub(super) fn kind(message: &[u8]) -> u16 {
    u16_at(message, 4).unwrap_or(0)
}

/// Replaces the receiver's address in the kernel's message, which is that of our own socket.
pub(super) fn readdress(message: &[u8], port: u32) -> Vec<u8> {
    let mut message = message.to_vec();
    message[12..16].copy_from_slice(&port.to_ne_bytes());
    message.resize(message.len().next_multiple_of(4), 0);
    message
}

/// A request.
pub(super) struct Request<'a> {
    bytes: &'a [u8],
}

impl<'a> Request<'a> {
    /// The requests in the bytes that were sent.
    pub(super) fn all(sent: &'a [u8]) -> impl Iterator<Item = Self> {
        let asks = |message: &&[u8]| {
            u16_at(message, 6).is_some_and(|flags| flags & libc::NLM_F_REQUEST as u16 != 0)
        };
        messages(sent).filter(asks).map(|bytes| Self { bytes })
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn kind(&self) -> u16 {
        kind(self.bytes)
    }

    fn has(&self, flags: libc::c_int) -> bool {
        let flags = flags as u16;
        u16_at(self.bytes, 6).is_some_and(|set| set & flags == flags)
    }

    pub(super) fn is_dump(&self) -> bool {
        self.has(libc::NLM_F_DUMP)
    }

    /// Whether the end must be reported even if there was no error.
    pub(super) fn wants_acknowledgement(&self) -> bool {
        self.has(libc::NLM_F_ACK)
    }

    fn sequence(&self) -> u32 {
        u32_at(self.bytes, 8).unwrap_or(0)
    }

    /// The value of an attribute that is a number.
    pub(super) fn number(&self, wanted: u16) -> Option<u32> {
        let mut rest = self.bytes.get(HEADER..)?;
        loop {
            let length = usize::from(u16_at(rest, 0)?);
            let value = rest.get(ATTRIBUTE..length)?;
            if u16_at(rest, 2)? == wanted {
                return u32_at(value, 0);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }
}

/// Attributes that follow one another.
#[derive(Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = ATTRIBUTE + value.len();
        self.0.extend(u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn u8(self, kind: u16, value: u8) -> Self {
        self.bytes(kind, &[value])
    }

    pub(super) fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(super) fn u64(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds text, which ends in NUL.
    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub(super) fn nest(self, kind: u16, inner: &Self) -> Self {
        self.bytes(kind | libc::NLA_F_NESTED as u16, &inner.0)
    }
}

/// The answer to a request, as datagrams.
pub(super) struct Answer<'a> {
    request: &'a Request<'a>,
    port: u32,
    datagrams: Vec<Vec<u8>>,
}

impl<'a> Answer<'a> {
    /// Creates an empty answer to the socket with this address.
    pub(super) fn new(request: &'a Request<'a>, port: u32) -> Self {
        Self { request, port, datagrams: Vec::new() }
    }

    /// Adds a complete message. Short messages share a datagram.
    pub(super) fn add(&mut self, message: Vec<u8>) {
        match self.datagrams.last_mut() {
            Some(last) if last.len() + message.len() <= DATAGRAM_MAX => last.extend(message),
            _ => self.datagrams.push(message),
        }
    }

    fn message(&self, kind: u16, flags: libc::c_int, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(u32::try_from(HEADER + body.len()).unwrap_or(0).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags as u16).to_ne_bytes());
        message.extend(self.request.sequence().to_ne_bytes());
        message.extend(self.port.to_ne_bytes());
        message.extend(body);
        message
    }

    /// Adds an object.
    pub(super) fn object(&mut self, attributes: &Attributes) {
        let flags = if self.request.is_dump() { libc::NLM_F_MULTI } else { 0 };
        let message = self.message(self.request.kind(), flags, &attributes.0);
        self.add(message);
    }

    /// Adds the end of a dump.
    pub(super) fn done(&mut self) {
        let message = self.message(libc::NLMSG_DONE as u16, libc::NLM_F_MULTI, &[0; 4]);
        self.add(message);
    }

    /// Adds an error or, with 0, an acknowledgement, in its own datagram as the kernel does.
    pub(super) fn error(&mut self, errno: libc::c_int) {
        let mut body = (-errno).to_ne_bytes().to_vec();
        body.extend(&self.request.bytes[..HEADER]);
        let message = self.message(libc::NLMSG_ERROR as u16, 0, &body);
        self.datagrams.push(message);
    }

    pub(super) fn port(&self) -> u32 {
        self.port
    }

    pub(super) fn into_datagrams(self) -> Vec<Vec<u8>> {
        self.datagrams
    }
}
