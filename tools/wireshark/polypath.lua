-- Wireshark dissector for Polypath's own packets; docs/wire.md describes them.
--
-- Install: copy into the personal Lua plugin folder (Help > About Wireshark > Folders), or
--   wireshark -X lua_script:polypath.lua        tshark -X lua_script:polypath.lua -r FILE
--
-- Standard RoCEv2 packets go on to Wireshark's own dissector. Filters: "polypath" for all of it,
-- "polypath.path == 1", "polypath.sack", "polypath.hello", "polypath.control.kind == 3" and so on.

local ROCE_PORT = 4791
local HELLO_QKEY = 0x80504f4c
local UD_SEND_ONLY = 0x64
local MPH_LEN, ICRC_LEN, MAC_LEN, BLOCK_LEN = 20, 4, 16, 8

local polypath = Proto("polypath", "Polypath multi-path RoCE")

-- Headers after BTH and MPH, by opcode, in the order of the wire.
local opcodes = {
    [0xc0] = { "SendFirst" },
    [0xc1] = { "SendMiddle" },
    [0xc2] = { "SendLast" },
    [0xc3] = { "SendLastImm", "imm" },
    [0xc4] = { "SendOnly" },
    [0xc5] = { "SendOnlyImm", "imm" },
    [0xc6] = { "WriteFirst", "reth" },
    [0xc7] = { "WriteMiddle", "reth" },
    [0xc8] = { "WriteLast", "reth" },
    [0xc9] = { "WriteLastImm", "reth", "imm" },
    [0xca] = { "WriteOnly", "reth" },
    [0xcb] = { "WriteOnlyImm", "reth", "imm" },
    [0xcc] = { "ReadReq", "reth" },
    [0xcd] = { "ReadRespFirst", "aeth" },
    [0xce] = { "ReadRespMiddle" },
    [0xcf] = { "ReadRespLast", "aeth" },
    [0xd0] = { "ReadRespOnly", "aeth" },
    [0xd1] = { "Ack", "aeth", "sack" },
    [0xd2] = { "AtomicAck", "aeth", "original" },
    [0xd3] = { "CmpSwap", "atomic" },
    [0xd4] = { "FetchAdd", "atomic" },
    [0xd6] = { "SendLastInv", "ieth" },
    [0xd7] = { "SendOnlyInv", "ieth" },
    [0xd8] = { "Probe" },
    [0xd9] = { "ProbeReply" },
    [0xda] = { "Control" },
    [0xdb] = { "Relay" },
    [0xdc] = { "Flush", "feth", "reth" },
    [0xdd] = { "AtomicWrite", "reth" },
    [0xde] = { "Datagram", "deth" },
    [0xdf] = { "DatagramImm", "deth", "imm" },
}

local opcode_names = { [UD_SEND_ONLY] = "UD.SendOnly" }
for code, layout in pairs(opcodes) do
    opcode_names[code] = "MP." .. layout[1]
end
local hello_kinds = { [1] = "HELLO", [2] = "HELLO_ACK", [3] = "HELLO_DONE", [4] = "ENDED" }
local control_kinds = { [0] = "PROBE", [1] = "ADDRESSES", [2] = "TABLE", [3] = "NOTICE", [4] = "BYE" }
local states = {
    [0] = "probing", [1] = "up", [2] = "suspect", [3] = "dead", [4] = "recovering", [5] = "down",
}
local selectivities = { [0] = "range", [1] = "memory region" }
local placements = { [1] = "global visibility", [2] = "persistence", [3] = "both" }
local naks = {
    [0] = "PSN sequence error", [1] = "invalid request", [2] = "remote access error",
    [3] = "remote operational error", [4] = "invalid RD request",
}

local f = {
    opcode = ProtoField.uint8("polypath.opcode", "Opcode", base.HEX, opcode_names),
    solicited = ProtoField.bool("polypath.solicited", "Solicited event", 8, nil, 0x80),
    migreq = ProtoField.bool("polypath.migreq", "Migration request", 8, nil, 0x40),
    pad = ProtoField.uint8("polypath.pad", "Pad count", base.DEC, nil, 0x30),
    pkey = ProtoField.uint16("polypath.pkey", "Partition key", base.HEX),
    qpn = ProtoField.uint24("polypath.qpn", "Destination queue pair", base.HEX),
    ackreq = ProtoField.bool("polypath.ackreq", "Acknowledge request", 8, nil, 0x80),
    psn = ProtoField.uint24("polypath.psn", "PSN", base.DEC),

    version = ProtoField.uint8("polypath.version", "Version", base.DEC, nil, 0xf0),
    flags = ProtoField.uint8("polypath.flags", "Flags", base.HEX, nil, 0x0f),
    twice = ProtoField.bool("polypath.flags.twice", "Sent by two paths", 8, nil, 0x01),
    marked = ProtoField.bool("polypath.flags.marked", "Path has marks of congestion", 8, nil, 0x02),
    path = ProtoField.uint8("polypath.path", "Path"),
    generation = ProtoField.uint16("polypath.generation", "Generation"),
    msg = ProtoField.uint32("polypath.msg", "Message"),
    offset = ProtoField.uint32("polypath.offset", "Offset in message"),
    recv = ProtoField.uint32("polypath.recv", "Receives"),
    timestamp = ProtoField.uint32("polypath.timestamp", "Timestamp (µs)"),

    selectivity = ProtoField.uint8("polypath.selectivity", "Selectivity", base.DEC, selectivities, 0x30),
    placement = ProtoField.uint8("polypath.placement", "Placement", base.DEC, placements, 0x0f),
    va = ProtoField.uint64("polypath.va", "Virtual address", base.HEX),
    rkey = ProtoField.uint32("polypath.rkey", "Remote key", base.HEX),
    dlen = ProtoField.uint32("polypath.dlen", "Length of message"),
    syndrome = ProtoField.uint8("polypath.syndrome", "Syndrome", base.HEX),
    msn = ProtoField.uint24("polypath.msn", "Message sequence number"),
    imm = ProtoField.uint32("polypath.imm", "Immediate data", base.HEX),
    swap_add = ProtoField.uint64("polypath.swap_add", "Swap or add", base.HEX),
    compare = ProtoField.uint64("polypath.compare", "Compare", base.HEX),
    original = ProtoField.uint64("polypath.original", "Original value", base.HEX),
    sack = ProtoField.uint64("polypath.sack", "Arrived out of order", base.HEX),
    block_first = ProtoField.uint32("polypath.block.first", "First PSN"),
    block_count = ProtoField.uint32("polypath.block.count", "Number of PSNs"),
    payload = ProtoField.bytes("polypath.payload", "Payload"),
    padding = ProtoField.bytes("polypath.padding", "Padding"),
    icrc = ProtoField.uint32("polypath.icrc", "ICRC", base.HEX),

    qkey = ProtoField.uint32("polypath.qkey", "Q_Key", base.HEX),
    src_qpn = ProtoField.uint24("polypath.src_qpn", "Source queue pair", base.HEX),
    hello = ProtoField.uint8("polypath.hello", "Kind", base.DEC, hello_kinds),
    proto_version = ProtoField.uint8("polypath.proto_version", "Version"),
    slot = ProtoField.uint8("polypath.slot", "Slot of sender"),
    instance = ProtoField.uint64("polypath.instance", "Instance of sender", base.HEX),
    nonce = ProtoField.bytes("polypath.nonce", "Nonce of sender"),
    echo = ProtoField.bytes("polypath.echo", "Nonce of receiver"),
    hello_qpn = ProtoField.uint32("polypath.hello.qpn", "Queue pair of sender", base.HEX),
    hello_peer = ProtoField.uint32("polypath.hello.peer_qpn", "Queue pair of receiver", base.HEX),
    from = ProtoField.uint32("polypath.association.sender", "Association at sender", base.HEX),
    to = ProtoField.uint32("polypath.association.receiver", "Association at receiver", base.HEX),
    window = ProtoField.uint32("polypath.window", "Receive buffer"),
    capabilities = ProtoField.uint32("polypath.capabilities", "Capabilities", base.HEX),
    path_kind = ProtoField.uint8("polypath.path_kind", "Kind", base.DEC, { [0] = "UDP", [1] = "shared memory", [2] = "TCP" }, 0xf0),
    reach = ProtoField.uint32("polypath.reach", "Reach (2^n bytes)", base.DEC, nil, 0x1f00),
    ports = ProtoField.uint32("polypath.ports", "Source ports wanted, less one", base.DEC, nil, 0x70000),
    addresses_version = ProtoField.uint32("polypath.addresses_version", "Version of address list"),
    port_index = ProtoField.uint8("polypath.port_index", "Index of source port", base.DEC, nil, 0x0f),
    table_version = ProtoField.uint32("polypath.table_version", "Version of path table"),
    count = ProtoField.uint8("polypath.count", "Number of entries"),
    address = ProtoField.ipv6("polypath.address", "Address"),
    prefix = ProtoField.uint8("polypath.prefix", "Prefix length"),
    interface = ProtoField.uint16("polypath.interface", "Interface of sender"),
    kind = ProtoField.uint8("polypath.control.kind", "Kind", base.DEC, control_kinds),
    control_flags = ProtoField.uint8("polypath.control.flags", "Flags", base.HEX),
    sequence = ProtoField.uint64("polypath.sequence", "Sequence number"),
    probe = ProtoField.uint32("polypath.probe", "Number of probe"),
    addresses_seen = ProtoField.uint32("polypath.addresses_seen", "Address list seen"),
    table_seen = ProtoField.uint32("polypath.table_seen", "Path table seen"),
    state = ProtoField.uint8("polypath.state", "State", base.DEC, states),
    mac = ProtoField.bytes("polypath.mac", "Authentication code"),
}
polypath.fields = f

local truncated = ProtoExpert.new("polypath.truncated", "Packet is too short", expert.group.MALFORMED,
    expert.severity.ERROR)
local unknown_version = ProtoExpert.new("polypath.unknown_version", "Unknown version",
    expert.group.UNDECODED, expert.severity.WARN)
local nak = ProtoExpert.new("polypath.nak", "Negative acknowledgement", expert.group.RESPONSE_CODE,
    expert.severity.NOTE)
polypath.experts = { truncated, unknown_version, nak }

-- Reads fields off the front of a range; `left` says how much there is.
local Cursor = {}
Cursor.__index = Cursor

function Cursor.new(range, tree)
    return setmetatable({ range = range, tree = tree, at = 0 }, Cursor)
end

function Cursor:left()
    return self.range:len() - self.at
end

function Cursor:take(len)
    if self:left() < len then
        error({ what = "truncated" })
    end
    local part = self.range(self.at, len)
    self.at = self.at + len
    return part
end

function Cursor:add(field, len)
    local part = self:take(len)
    self.tree:add(field, part)
    return part
end

-- A part of the packet as a tree of its own; returns what goes back to where we were.
function Cursor:enter(len, title)
    local outer = self.tree
    local shown = math.min(len, self:left())
    if shown <= 0 then
        error({ what = "truncated" })
    end
    self.tree = outer:add(polypath, self.range(self.at, shown), title)
    return function() self.tree = outer end
end

local function bth(c, info)
    local leave = c:enter(12, "Base Transport Header")
    info.opcode = c:add(f.opcode, 1):uint()
    local bits = c:take(1)
    c.tree:add(f.solicited, bits)
    c.tree:add(f.migreq, bits)
    c.tree:add(f.pad, bits)
    info.pad = bits:bitfield(2, 2)
    c:add(f.pkey, 2)
    c:take(1)
    info.qpn = c:add(f.qpn, 3):uint()
    c:add(f.ackreq, 1)
    info.psn = c:add(f.psn, 3):uint()
    leave()
end

local function mph(c, info)
    local leave = c:enter(MPH_LEN, "Multi-Path Header")
    local first = c:take(1)
    c.tree:add(f.version, first)
    local flags = c.tree:add(f.flags, first)
    flags:add(f.twice, first)
    flags:add(f.marked, first)
    if first:bitfield(0, 4) ~= 1 then
        c.tree:add_proto_expert_info(unknown_version)
    end
    info.path = c:add(f.path, 1):uint()
    info.generation = c:add(f.generation, 2):uint()
    info.msg = c:add(f.msg, 4):uint()
    info.offset = c:add(f.offset, 4):uint()
    c:add(f.recv, 4)
    c:add(f.timestamp, 4)
    leave()
end

local headers = {}

function headers.feth(c)
    local leave = c:enter(4, "FLUSH Extended Transport Header")
    c:take(3)
    local bits = c:take(1)
    c.tree:add(f.selectivity, bits)
    c.tree:add(f.placement, bits)
    leave()
end

function headers.deth(c)
    local leave = c:enter(8, "Datagram Extended Transport Header")
    c:add(f.qkey, 4)
    c:take(1)
    c:add(f.src_qpn, 3)
    leave()
end

function headers.reth(c)
    local leave = c:enter(16, "RDMA Extended Transport Header")
    c:add(f.va, 8)
    c:add(f.rkey, 4)
    c:add(f.dlen, 4)
    leave()
end

function headers.imm(c)
    c:add(f.imm, 4)
end

function headers.ieth(c)
    c:add(f.rkey, 4)
end

function headers.original(c)
    c:add(f.original, 8)
end

function headers.atomic(c)
    local leave = c:enter(28, "Atomic Extended Transport Header")
    c:add(f.va, 8)
    c:add(f.rkey, 4)
    c:add(f.swap_add, 8)
    c:add(f.compare, 8)
    leave()
end

function headers.aeth(c, info)
    local leave = c:enter(4, "ACK Extended Transport Header")
    local syndrome = c:take(1)
    local item = c.tree:add(f.syndrome, syndrome)
    local kind, low = syndrome:bitfield(0, 3), syndrome:bitfield(3, 5)
    local text = "reserved"
    if kind == 0 then
        text = "ACK"
    elseif kind == 1 then
        text = "RNR NAK, timer " .. low
    elseif kind == 3 then
        text = "NAK: " .. (naks[low] or "reserved")
    end
    item:append_text(" (" .. text .. ")")
    if kind ~= 0 then
        item:add_proto_expert_info(nak, text)
    end
    if info.opcode == 0xd1 then
        info.text = text
    end
    c:add(f.msn, 3)
    leave()
end

function headers.sack(c, info)
    local part = c:take(8)
    local item = c.tree:add(f.sack, part)
    local psns = {}
    for i = 0, 63 do
        -- Bit i counts from the least significant: byte 7 holds bits 0 to 7.
        local byte = part(7 - math.floor(i / 8), 1):uint()
        if math.floor(byte / 2 ^ (i % 8)) % 2 == 1 then
            psns[#psns + 1] = (info.psn + 1 + i) % 0x1000000
        end
    end
    if #psns > 0 then
        item:append_text(" (PSN " .. table.concat(psns, ", ") .. ")")
        info.text = (info.text or "") .. ", arrived beyond: " .. #psns
    end
end

local function addresses(c, count)
    for _ = 1, count do
        local leave = c:enter(20, "Address")
        local part = c:take(16)
        c.tree:add(f.address, part)
        c:add(f.prefix, 1)
        c:take(1)
        c:add(f.interface, 2)
        c.tree:append_text(" " .. tostring(part:ipv6()))
        leave()
    end
end

local function hello(c, info)
    headers.deth(c)
    local leave = c:enter(c:left() - ICRC_LEN, "Polypath Handshake")
    c:take(4)
    if c:add(f.proto_version, 1):uint() ~= 1 then
        c.tree:add_proto_expert_info(unknown_version)
    end
    local kind = c:add(f.hello, 1):uint()
    c:add(f.slot, 1)
    local count = c:add(f.count, 1):uint()
    c:add(f.instance, 8)
    c:add(f.nonce, 16)
    c:add(f.echo, 16)
    c:add(f.hello_qpn, 4)
    c:add(f.hello_peer, 4)
    c:add(f.from, 4)
    c:add(f.window, 4)
    local capabilities = c:add(f.capabilities, 4)
    c.tree:add(f.reach, capabilities)
    c.tree:add(f.ports, capabilities)
    c:add(f.addresses_version, 4)
    addresses(c, count)
    c:add(f.mac, MAC_LEN)
    leave()
    info.name = hello_kinds[kind] or "HELLO?"
    info.text = count .. " addresses"
end

local function control(c, info)
    local leave = c:enter(c:left() - ICRC_LEN, "Polypath " .. opcodes[info.opcode][1])
    if c:add(f.proto_version, 1):uint() ~= 1 then
        c.tree:add_proto_expert_info(unknown_version)
    end
    info.path = c:add(f.path, 1):uint()
    info.generation = c:add(f.generation, 2):uint()
    c:add(f.to, 4)
    c:add(f.from, 4)
    local kind = c:add(f.kind, 1):uint()
    c:add(f.control_flags, 1)
    local count = c:add(f.count, 1):uint()
    c:take(1)
    c:add(f.sequence, 8)
    local number = c:add(f.probe, 4):uint()
    c:take(4)
    c:add(f.addresses_seen, 4)
    c:add(f.table_seen, 4)
    local said = {}
    for _ = 1, count do
        local out = c:enter(4, "Path")
        local path = c:add(f.path, 1):uint()
        local state = c:add(f.state, 1):uint()
        c:add(f.generation, 2)
        said[#said + 1] = path .. " " .. (states[state] or state)
        c.tree:append_text(" " .. said[#said])
        out()
    end
    if info.opcode == 0xda then
        info.name = "MP.Control " .. (control_kinds[kind] or kind)
        info.text = table.concat(said, ", ")
    else
        info.text = "number " .. number
    end
    if kind == 1 then
        c:add(f.addresses_version, 4)
        local n = c:add(f.count, 1):uint()
        c:take(3)
        addresses(c, n)
    elseif kind == 2 then
        c:add(f.table_version, 4)
        local n = c:add(f.count, 1):uint()
        c:take(3)
        for _ = 1, n do
            local out = c:enter(36, "Path of the table")
            c.tree:append_text(" " .. c:add(f.path, 1):uint())
            local shape = c:take(1)
            c.tree:add(f.path_kind, shape)
            c.tree:add(f.port_index, shape)
            c:add(f.generation, 2)
            c:add(f.address, 16)
            c:add(f.address, 16)
            out()
        end
    end
    c:add(f.mac, MAC_LEN)
    leave()
end

-- What has arrived beyond the reach of the SACK.
local function blocks(c, info, count)
    for _ = 1, count do
        local leave = c:enter(BLOCK_LEN, "Arrived out of order")
        local first = c:add(f.block_first, 4):uint()
        local psns = c:add(f.block_count, 4):uint()
        c.tree:append_text(" (PSN " .. first .. " to " .. (first + psns - 1) % 0x1000000 .. ")")
        leave()
    end
    info.text = (info.text or "") .. ", blocks: " .. count
end

local function data(c, info)
    mph(c, info)
    local layout = opcodes[info.opcode]
    for i = 2, #layout do
        headers[layout[i]](c, info)
    end
    local len = c:left() - ICRC_LEN - info.pad
    if len < 0 then
        error({ what = "truncated" })
    end
    if len > 0 and info.opcode == 0xd1 and len % BLOCK_LEN == 0 then
        blocks(c, info, len / BLOCK_LEN)
    elseif len > 0 then
        c:add(f.payload, len)
    end
    if info.pad > 0 then
        c:add(f.padding, info.pad)
    end
    info.len = len
end

-- A packet to or from the rendezvous.
local function relay(c, info)
    local len = c:left() - ICRC_LEN
    if len < 0 then
        error({ what = "truncated" })
    end
    c:add(f.payload, len)
    info.len = len
end

local function is_management(opcode)
    return opcode >= 0xd8 and opcode <= 0xda
end

local function dissect(c, info)
    bth(c, info)
    info.name = opcode_names[info.opcode]
    if info.opcode == UD_SEND_ONLY then
        hello(c, info)
    elseif is_management(info.opcode) then
        control(c, info)
    elseif info.opcode == 0xdb then
        relay(c, info)
    else
        data(c, info)
    end
    c:add(f.icrc, ICRC_LEN)
end

local function summary(info)
    local parts = { info.name or "?", string.format("QP=0x%06x", info.qpn or 0) }
    if not is_management(info.opcode) and info.opcode ~= UD_SEND_ONLY and info.psn then
        parts[#parts + 1] = "PSN=" .. info.psn
    end
    if info.path then
        parts[#parts + 1] = "path=" .. info.path .. "." .. info.generation
    end
    if info.msg and info.opcode < 0xcd or info.opcode > 0xd2 and info.msg then
        parts[#parts + 1] = "msg=" .. info.msg .. "+" .. info.offset
    end
    if info.len then
        parts[#parts + 1] = "len=" .. info.len
    end
    if info.text and info.text ~= "" then
        parts[#parts + 1] = "(" .. info.text .. ")"
    end
    return table.concat(parts, " ")
end

local port_table = DissectorTable.get("udp.port")
local standard = port_table:get_dissector(ROCE_PORT)

local function is_ours(tvb)
    if tvb:len() < 16 then
        return false
    end
    local opcode = tvb(0, 1):uint()
    if opcodes[opcode] then
        return true
    end
    return opcode == UD_SEND_ONLY and tvb:len() >= 24 and tvb(12, 4):uint() == HELLO_QKEY
        and tvb(20, 4):string() == "PPTH"
end

function polypath.dissector(tvb, pinfo, tree)
    if not is_ours(tvb) then
        if standard then
            return standard:call(tvb, pinfo, tree)
        end
        return 0
    end
    pinfo.cols.protocol = "Polypath"
    local root = tree:add(polypath, tvb())
    local info = {}
    local cursor = Cursor.new(tvb(), root)
    local ok, problem = pcall(dissect, cursor, info)
    if not ok then
        if type(problem) ~= "table" then
            error(problem, 0)
        end
        root:add_proto_expert_info(truncated)
    end
    local line = summary(info)
    root:append_text(", " .. line)
    pinfo.cols.info = line
    return tvb:len()
end

port_table:add(ROCE_PORT, polypath)
