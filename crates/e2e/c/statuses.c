/* What becomes of work requests that must fail: the completion statuses at both ends, the state in
 * which the queue pairs are left, and the asynchronous events.
 *
 * responder:  statuses -s PORT GID_INDEX
 * requester:  statuses -c HOST PORT GID_INDEX
 *
 * Both run through the same list of cases and meet over TCP before and after each. The requester
 * prints a line per case,
 *
 *     case <tab> what the requester saw <tab> what the responder saw
 *
 * and "end" after the last. Cases that the device of one side does not support are left out. The program
 * judges nothing: two implementations of verbs are compared by its outputs.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	BUFFER = 1 << 16,   /* bytes of each side's memory */
	REGISTERED = 1 << 15, /* the first half of it is registered */
	DEPTH = 16,
	OPERATIONS = 3,
	QKEY = 0x11223344,
	TEXT = 400,
	QUIET_MS = 150,     /* so long nothing must come before we think that nothing will */
	COMPLETE_MS = 10000, /* a request that has not completed by then never will */
};

/* Constants that rdma-core 44 does not define. */
enum {
	ACCESS_FLUSH_GLOBAL = 1 << 8, WITH_FLUSH = 1 << 11, WITH_ATOMIC_WRITE = 1 << 12,
	GLOBAL = 1, PERSISTENT = 2, RANGE = 0, REGION = 1,
};
#define WR_FLUSH ((enum ibv_wr_opcode)14)
static const uint64_t CAP_PLACEMENT = 1ULL << 38 | 1ULL << 40; /* FLUSH (global) and ATOMIC WRITE */

enum memory { SAME, OTHER_PD, DEREGISTERED, WINDOW, WINDOW_INVALIDATED };

#define ALL_REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

struct operation {
	enum ibv_wr_opcode opcode;
	uint32_t length;
	uint32_t remote_offset;
	uint32_t rkey_xor;
	uint32_t lkey_xor;
	uint32_t local_offset;
	bool fence;
	bool present;
	bool persistent;            /* FLUSH only, as the next */
	bool region;
};

/* Numbers that are 0 in almost every case are stored so that 0 is the usual. */
struct test {
	const char *name;
	enum ibv_qp_type type;      /* 0: RC */
	struct operation operation[OPERATIONS];
	enum memory memory;         /* what the rkey names */
	uint32_t mr_lacks;          /* remote rights that the region does not grant */
	uint32_t qp_lacks;          /* remote rights that the queue pair does not grant */
	bool local_read_only;       /* the requester's region may not be written */
	bool no_receives;
	bool late_receives;         /* posted when the requester has met RNR */
	uint32_t receive_length;    /* 0: BUFFER / 4 */
	uint32_t receive_lkey_xor;
	bool short_retries;         /* give up soon */
	bool rnr_never;             /* rnr_retry 0 */
	bool no_responder_resources; /* max_dest_rd_atomic 0 */
	bool wrong_qpn;
	uint32_t qkey_xor;
	bool responder_error;       /* the responder's queue pair is in the error state */
	bool placement;             /* has ATOMIC WRITE or FLUSH */
};

#define OP(...) { .present = true, __VA_ARGS__ }
/* Fenced, so that it is not sent before a READ or an atomic has completed. */
#define THEN_SEND OP(.opcode = IBV_WR_SEND, .length = 64, .fence = true)
#define ATOMIC(...) OP(.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 8, __VA_ARGS__)
#define WRITE(...) OP(.opcode = IBV_WR_RDMA_WRITE, .length = 5000, __VA_ARGS__)
#define READ(...) OP(.opcode = IBV_WR_RDMA_READ, .length = 5000, __VA_ARGS__)
#define ATOMIC_WRITE(...) OP(.opcode = IBV_WR_ATOMIC_WRITE, .length = 8, __VA_ARGS__)
#define FLUSH(...) OP(.opcode = WR_FLUSH, .length = 5000, __VA_ARGS__)
#define SEND(...) OP(.opcode = IBV_WR_SEND, .length = 5000, __VA_ARGS__)

static const struct test tests[] = {
	{ "nothing wrong", .operation = { WRITE(), READ(), THEN_SEND } },
	{ "atomic, nothing wrong", .operation = { ATOMIC(), OP(.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .length = 8), THEN_SEND } },
	{ "WRITE with immediate data, nothing wrong", .operation = { OP(.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .length = 5000), THEN_SEND } },
	{ "WRITE, wrong rkey", .operation = { WRITE(.rkey_xor = 0x5500), THEN_SEND } },
	{ "WRITE, wrong key byte of the rkey", .operation = { WRITE(.rkey_xor = 0x55), THEN_SEND } },
	{ "WRITE beyond the region", .operation = { WRITE(.remote_offset = REGISTERED - 4999), THEN_SEND } },
	{ "WRITE of nothing, wrong rkey", .operation = { OP(.opcode = IBV_WR_RDMA_WRITE, .rkey_xor = 0x5500), THEN_SEND } },
	{ "WRITE, region without the right", .mr_lacks = IBV_ACCESS_REMOTE_WRITE, .operation = { WRITE(), THEN_SEND } },
	{ "WRITE, queue pair without the right", .qp_lacks = IBV_ACCESS_REMOTE_WRITE, .operation = { WRITE(), THEN_SEND } },
	{ "WRITE, region of another protection domain", .memory = OTHER_PD, .operation = { WRITE(), THEN_SEND } },
	{ "WRITE, region gone", .memory = DEREGISTERED, .operation = { WRITE(), THEN_SEND } },
	{ "WRITE with immediate data, wrong rkey", .operation = { OP(.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .length = 5000, .rkey_xor = 0x5500), THEN_SEND } },
	{ "WRITE, wrong lkey", .operation = { WRITE(.lkey_xor = 0x5500), THEN_SEND } },
	{ "WRITE from beyond the local region", .operation = { WRITE(.local_offset = REGISTERED - 4999), THEN_SEND } },
	{ "READ, wrong rkey", .operation = { READ(.rkey_xor = 0x5500), THEN_SEND } },
	{ "READ beyond the region", .operation = { READ(.remote_offset = REGISTERED - 4999), THEN_SEND } },
	{ "READ, region without the right", .mr_lacks = IBV_ACCESS_REMOTE_READ, .operation = { READ(), THEN_SEND } },
	{ "READ, queue pair without the right", .qp_lacks = IBV_ACCESS_REMOTE_READ, .operation = { READ(), THEN_SEND } },
	{ "READ, wrong lkey", .operation = { READ(.lkey_xor = 0x5500), THEN_SEND } },
	{ "READ into a region that may not be written", .local_read_only = true, .operation = { READ(), THEN_SEND } },
	{ "READ, responder without resources", .no_responder_resources = true, .operation = { READ(), THEN_SEND } },
	{ "atomic, wrong rkey", .operation = { ATOMIC(.rkey_xor = 0x5500), THEN_SEND } },
	{ "atomic beyond the region", .operation = { ATOMIC(.remote_offset = REGISTERED), THEN_SEND } },
	{ "atomic, not aligned", .operation = { ATOMIC(.remote_offset = 4), THEN_SEND } },
	{ "atomic, region without the right", .mr_lacks = IBV_ACCESS_REMOTE_ATOMIC, .operation = { ATOMIC(), THEN_SEND } },
	{ "atomic, queue pair without the right", .qp_lacks = IBV_ACCESS_REMOTE_ATOMIC, .operation = { ATOMIC(), THEN_SEND } },
	{ "SEND, longer than the receive", .receive_length = 4999, .operation = { SEND(), THEN_SEND } },
	{ "SEND, wrong lkey", .operation = { SEND(.lkey_xor = 0x5500), THEN_SEND } },
	{ "SEND, receive with a wrong lkey", .receive_lkey_xor = 0x5500, .operation = { SEND(), THEN_SEND } },
	{ "SEND, no receive, rnr_retry 0", .no_receives = true, .rnr_never = true, .operation = { SEND(), THEN_SEND } },
	{ "SEND, no receive, rnr_retry 1", .no_receives = true, .short_retries = true, .operation = { SEND(), THEN_SEND } },
	{ "SEND, receive comes late, rnr_retry 7", .no_receives = true, .late_receives = true, .operation = { SEND(), THEN_SEND } },
	{ "SEND, no such queue pair", .wrong_qpn = true, .short_retries = true, .operation = { SEND(), THEN_SEND } },
	{ "READ, no such queue pair", .wrong_qpn = true, .short_retries = true, .operation = { READ(), THEN_SEND } },
	{ "SEND, responder in the error state", .responder_error = true, .short_retries = true, .operation = { SEND(), THEN_SEND } },
	{ "memory window, nothing wrong", .memory = WINDOW, .operation = { WRITE(), READ(), THEN_SEND } },
	{ "memory window, WRITE beyond it", .memory = WINDOW, .operation = { WRITE(.remote_offset = REGISTERED / 2 - 4999), THEN_SEND } },
	{ "memory window, invalidated", .memory = WINDOW_INVALIDATED, .operation = { WRITE(), THEN_SEND } },
	{ "memory window, invalidated by SEND", .memory = WINDOW, .operation = { OP(.opcode = IBV_WR_SEND_WITH_INV, .length = 64), WRITE(), THEN_SEND } },
	{ "SEND with invalidate, wrong rkey", .memory = WINDOW, .operation = { OP(.opcode = IBV_WR_SEND_WITH_INV, .length = 64, .rkey_xor = 0x5500), THEN_SEND } },
	{ "ATOMIC WRITE, nothing wrong", .placement = true, .operation = { ATOMIC_WRITE(), THEN_SEND } },
	{ "ATOMIC WRITE, wrong rkey", .placement = true, .operation = { ATOMIC_WRITE(.rkey_xor = 0x5500), THEN_SEND } },
	{ "ATOMIC WRITE beyond the region", .placement = true, .operation = { ATOMIC_WRITE(.remote_offset = REGISTERED), THEN_SEND } },
	{ "ATOMIC WRITE, region without the right", .placement = true, .mr_lacks = IBV_ACCESS_REMOTE_WRITE, .operation = { ATOMIC_WRITE(), THEN_SEND } },
	{ "ATOMIC WRITE, queue pair without the right", .placement = true, .qp_lacks = IBV_ACCESS_REMOTE_WRITE, .operation = { ATOMIC_WRITE(), THEN_SEND } },
	{ "FLUSH of a range, nothing wrong", .placement = true, .operation = { WRITE(), FLUSH(), THEN_SEND } },
	{ "FLUSH of a region, nothing wrong", .placement = true, .operation = { WRITE(), FLUSH(.region = true), THEN_SEND } },
	{ "FLUSH after an ATOMIC WRITE, nothing wrong", .placement = true, .operation = { ATOMIC_WRITE(), FLUSH(.fence = true), THEN_SEND } },
	{ "FLUSH, wrong rkey", .placement = true, .operation = { FLUSH(.rkey_xor = 0x5500), THEN_SEND } },
	{ "FLUSH beyond the region", .placement = true, .operation = { FLUSH(.remote_offset = REGISTERED - 4999), THEN_SEND } },
	{ "FLUSH, region without the right", .placement = true, .mr_lacks = ACCESS_FLUSH_GLOBAL, .operation = { FLUSH(), THEN_SEND } },
	{ "FLUSH, queue pair without the right", .placement = true, .qp_lacks = ACCESS_FLUSH_GLOBAL, .operation = { FLUSH(), THEN_SEND } },
	{ "FLUSH to persistence, region without the right", .placement = true, .operation = { FLUSH(.persistent = true), THEN_SEND } },
	{ "UC, nothing wrong", .type = IBV_QPT_UC, .operation = { WRITE(), SEND(), THEN_SEND } },
	{ "UC WRITE, wrong rkey", .type = IBV_QPT_UC, .operation = { WRITE(.rkey_xor = 0x5500), THEN_SEND } },
	{ "UC WRITE, region without the right", .type = IBV_QPT_UC, .mr_lacks = IBV_ACCESS_REMOTE_WRITE, .operation = { WRITE(), THEN_SEND } },
	{ "UC WRITE, queue pair without the right", .type = IBV_QPT_UC, .qp_lacks = IBV_ACCESS_REMOTE_WRITE, .operation = { WRITE(), THEN_SEND } },
	{ "UC SEND, longer than the receive", .type = IBV_QPT_UC, .receive_length = 4999, .operation = { SEND(), THEN_SEND } },
	{ "UC SEND, no receive", .type = IBV_QPT_UC, .no_receives = true, .operation = { SEND(), THEN_SEND } },
	{ "UC SEND, wrong lkey", .type = IBV_QPT_UC, .operation = { SEND(.lkey_xor = 0x5500), THEN_SEND } },
	{ "UC SEND, no such queue pair", .type = IBV_QPT_UC, .wrong_qpn = true, .operation = { SEND(), THEN_SEND } },
	{ "UD, nothing wrong", .type = IBV_QPT_UD, .operation = { OP(.opcode = IBV_WR_SEND, .length = 1000), THEN_SEND } },
	{ "UD, wrong Q_Key", .type = IBV_QPT_UD, .qkey_xor = 1, .operation = { OP(.opcode = IBV_WR_SEND, .length = 1000), THEN_SEND } },
	{ "UD, longer than the receive", .type = IBV_QPT_UD, .receive_length = 1000, .operation = { OP(.opcode = IBV_WR_SEND, .length = 1000), THEN_SEND } },
	{ "UD, no receive", .type = IBV_QPT_UD, .no_receives = true, .operation = { OP(.opcode = IBV_WR_SEND, .length = 1000), THEN_SEND } },
	{ "UD, longer than the path MTU", .type = IBV_QPT_UD, .operation = { OP(.opcode = IBV_WR_SEND, .length = 5000), THEN_SEND } },
	{ "UD, wrong lkey", .type = IBV_QPT_UD, .operation = { OP(.opcode = IBV_WR_SEND, .length = 1000, .lkey_xor = 0x5500), THEN_SEND } },
	{ "UD, no such queue pair", .type = IBV_QPT_UD, .wrong_qpn = true, .operation = { OP(.opcode = IBV_WR_SEND, .length = 1000), THEN_SEND } },
};
enum { TESTS = sizeof(tests) / sizeof(tests[0]) };

/* What each side tells the other before a case. */
struct side {
	uint32_t qpn, psn, rkey, pad;
	uint64_t address;
	uint8_t gid[16];
};

static struct ibv_context *context;
static struct ibv_pd *pd, *other_pd;
static uint8_t *buffer;
static int gid_index, peer;

/* The objects of one case. */
static struct ibv_mr *mr;     /* for local access */
static struct ibv_mr *target; /* what the peer's operations name */
static struct ibv_mw *mw;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;

static void fail(const char *format, ...)
{
	int error = errno;
	va_list arguments;
	va_start(arguments, format);
	fputs("statuses: ", stderr);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, " (errno %d, %s)\n", error, strerror(error));
	va_end(arguments);
	exit(1);
}

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Gives the processor to the other end, which may be on the same one. */
static void breathe(void)
{
	poll(NULL, 0, 1);
}

static void tell(const void *data, size_t length)
{
	if (write(peer, data, length) != (ssize_t)length)
		fail("telling the other side");
}

static void hear(void *data, size_t length)
{
	for (size_t have = 0; have < length;) {
		ssize_t count = read(peer, (uint8_t *)data + have, length - have);
		if (count <= 0)
			fail("the other side has gone");
		have += (size_t)count;
	}
}

/* Waits until both sides have come to the same point. */
static void meet(char point)
{
	char other;
	tell(&point, 1);
	hear(&other, 1);
	if (other != point)
		fail("the sides are at different points, %c and %c", point, other);
}

static enum ibv_qp_type type_of(const struct test *test)
{
	return test->type ? test->type : IBV_QPT_RC;
}

static const char *state_name(enum ibv_qp_state state)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	return (unsigned)state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

static const char *status_name(enum ibv_wc_status status)
{
	static const char *const names[] = {
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
		"MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR",
		"REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR",
	};
	return (unsigned)status < sizeof(names) / sizeof(names[0]) ? names[status] : "?";
}

static void note(char *text, const char *format, ...)
{
	size_t have = strlen(text);
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text + have, TEXT - have, format, arguments);
	va_end(arguments);
}

/* Queue pairs for ATOMIC WRITE and FLUSH are made by the new function; the others by the old. */
static struct ibv_qp *make_qp(const struct test *test)
{
	struct ibv_qp_cap cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 };
	if (!test->placement) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = type_of(test), .sq_sig_all = 1, .cap = cap,
		};
		return ibv_create_qp(pd, &init);
	}
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type_of(test), .sq_sig_all = 1, .cap = cap, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | WITH_FLUSH | WITH_ATOMIC_WRITE,
	};
	return ibv_create_qp_ex(context, &init);
}

static void make(const struct test *test, bool responder)
{
	uint32_t all_remote = ALL_REMOTE | (test->placement ? ACCESS_FLUSH_GLOBAL : 0);
	int access = (int)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | (all_remote & ~test->mr_lacks));
	memset(buffer, 0, BUFFER);
	mr = ibv_reg_mr(pd, buffer, REGISTERED, test->local_read_only && !responder ? 0 : IBV_ACCESS_LOCAL_WRITE);
	target = ibv_reg_mr(test->memory == OTHER_PD ? other_pd : pd, buffer, REGISTERED, access);
	if (!mr || !target)
		fail("registering memory");
	cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	if (!cq)
		fail("creating a completion queue");
	qp = make_qp(test);
	if (!qp)
		fail("creating a queue pair");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	if (test->type == IBV_QPT_UD) {
		attr.qkey = responder ? QKEY ^ test->qkey_xor : QKEY;
		mask |= IBV_QP_QKEY;
	} else {
		attr.qp_access_flags = all_remote & ~test->qp_lacks;
		/* UC has no READs and atomics. */
		if (test->type == IBV_QPT_UC)
			attr.qp_access_flags &= IBV_ACCESS_REMOTE_WRITE;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	errno = ibv_modify_qp(qp, &attr, mask);
	if (errno)
		fail("to INIT");
}

static void connect_to(const struct test *test, const struct side *local, const struct side *remote,
		       bool responder)
{
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = (uint8_t)gid_index, .hop_limit = 64 } };
	memcpy(&path.grh.dgid, remote->gid, 16);
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR }, rts = { .qp_state = IBV_QPS_RTS };
	int rtr_mask = IBV_QP_STATE, rts_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	rts.sq_psn = local->psn;
	if (test->type == IBV_QPT_UD) {
		ah = ibv_create_ah(pd, &path);
		if (!ah)
			fail("creating an address handle");
	} else {
		rtr.ah_attr = path;
		rtr.path_mtu = IBV_MTU_1024;
		rtr.dest_qp_num = test->wrong_qpn ? 0xfffff0 : remote->qpn;
		rtr.rq_psn = remote->psn;
		rtr_mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (type_of(test) == IBV_QPT_RC) {
		rtr.max_dest_rd_atomic = test->no_responder_resources && responder ? 0 : 4;
		rtr.min_rnr_timer = 12; /* 0.64 ms */
		rtr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		rts.timeout = test->short_retries ? 14 : 16; /* 67 ms, 268 ms */
		rts.retry_cnt = test->short_retries ? 2 : 7;
		rts.rnr_retry = test->rnr_never ? 0 : test->short_retries ? 1 : 7;
		rts.max_rd_atomic = 4;
		rts_mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	errno = ibv_modify_qp(qp, &rtr, rtr_mask);
	if (errno)
		fail("%s: to RTR", test->name);
	errno = ibv_modify_qp(qp, &rts, rts_mask);
	if (errno)
		fail("%s: to RTS", test->name);
}

/* Waits for `count` completions of our own, or for QUIET_MS without any if it is 0. */
static void collect(char *text, int count)
{
	int64_t last = now_ms();
	for (int have = 0; count == 0 || have < count;) {
		struct ibv_wc wc;
		int polled = ibv_poll_cq(cq, 1, &wc);
		if (polled < 0)
			fail("polling");
		if (polled == 1) {
			note(text, "%s%s", have ? " " : "", status_name(wc.status));
			have++;
			last = now_ms();
		} else if (now_ms() - last > (count ? COMPLETE_MS : QUIET_MS)) {
			if (!have || count)
				note(text, "%snothing", have ? " " : "");
			return;
		} else {
			breathe();
		}
	}
}

static void state_and_events(char *text)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	errno = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init);
	if (errno)
		fail("querying the queue pair");
	note(text, "; QP %s", state_name(attr.qp_state));
	struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
	while (poll(&ready, 1, 0) == 1) {
		struct ibv_async_event event;
		if (ibv_get_async_event(context, &event))
			break;
		/* Whether the event COMM_EST comes depends on timing. */
		if (event.event_type == IBV_EVENT_QP_REQ_ERR)
			note(text, ", event QP_REQ_ERR");
		else if (event.event_type == IBV_EVENT_QP_ACCESS_ERR)
			note(text, ", event QP_ACCESS_ERR");
		else if (event.event_type == IBV_EVENT_QP_FATAL)
			note(text, ", event QP_FATAL");
		else if (event.event_type == IBV_EVENT_CQ_ERR)
			note(text, ", event CQ_ERR");
		ibv_ack_async_event(&event);
	}
}

static void post_receives(const struct test *test)
{
	uint32_t length = test->receive_length ? test->receive_length : BUFFER / 4;
	/* What a UD queue pair receives begins with 40 bytes of addresses. */
	if (test->type == IBV_QPT_UD && test->receive_length)
		length += 39;
	struct ibv_sge sge = { (uintptr_t)buffer, length, mr->lkey ^ test->receive_lkey_xor };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	for (int i = 0; i < 3; i++) {
		errno = ibv_post_recv(qp, &wr, &bad);
		if (errno)
			fail("posting a receive");
	}
}

/* Binds a type 2 window over the first half of the region to this queue pair. */
static uint32_t bind_window(const struct test *test)
{
	char text[TEXT] = "";
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!mw)
		fail("allocating a memory window");
	struct ibv_send_wr bind = {
		.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey),
			     .bind_info = { .mr = target, .addr = (uintptr_t)buffer, .length = REGISTERED / 2,
					    .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ } },
	}, *bad;
	errno = ibv_post_send(qp, &bind, &bad);
	if (errno)
		fail("binding a memory window");
	collect(text, 1);
	if (test->memory == WINDOW_INVALIDATED) {
		struct ibv_send_wr invalidate = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = bind.bind_mw.rkey };
		errno = ibv_post_send(qp, &invalidate, &bad);
		if (errno)
			fail("invalidating a memory window");
		collect(text, 1);
	}
	if (strstr(text, "ERR"))
		fail("the memory window: %s", text);
	return bind.bind_mw.rkey;
}

/* Posts a request with the extended interface, and returns an errno. */
static int post_extended(const struct operation *op, uint32_t rkey, uint64_t address)
{
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(extended);
	extended->wr_flags = op->fence ? IBV_SEND_FENCE : 0;
	if (op->opcode == IBV_WR_ATOMIC_WRITE) {
		ibv_wr_atomic_write(extended, rkey, address, buffer);
	} else {
		/* The function pointer follows the last one that rdma-core 44 declares. */
		void (*flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
		memcpy(&flush, (char *)extended + offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void *), sizeof(flush));
		flush(extended, rkey, address, op->length, op->persistent ? PERSISTENT : GLOBAL, op->region ? REGION : RANGE);
	}
	return ibv_wr_complete(extended);
}

static void request(const struct test *test, const struct side *remote, char *text)
{
	int posted = 0;
	for (; posted < OPERATIONS && test->operation[posted].present; posted++) {
		const struct operation *op = &test->operation[posted];
		struct ibv_sge sge = { (uintptr_t)buffer + op->local_offset, op->length, mr->lkey ^ op->lkey_xor };
		struct ibv_send_wr wr = { .opcode = op->opcode, .sg_list = &sge, .num_sge = op->length ? 1 : 0 }, *bad;
		if (op->fence && type_of(test) == IBV_QPT_RC)
			wr.send_flags = IBV_SEND_FENCE;
		uint32_t rkey = remote->rkey ^ op->rkey_xor;
		uint64_t address = remote->address + op->remote_offset;
		if (test->type == IBV_QPT_UD) {
			wr.wr.ud.ah = ah;
			wr.wr.ud.remote_qpn = test->wrong_qpn ? 0xfffff0 : remote->qpn;
			wr.wr.ud.remote_qkey = QKEY;
		} else if (op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
			wr.wr.atomic.remote_addr = address;
			wr.wr.atomic.rkey = rkey;
			wr.wr.atomic.compare_add = 1;
		} else if (op->opcode == IBV_WR_SEND_WITH_INV) {
			wr.invalidate_rkey = rkey;
		} else {
			wr.wr.rdma.remote_addr = address;
			wr.wr.rdma.rkey = rkey;
		}
		bool extended = op->opcode == IBV_WR_ATOMIC_WRITE || op->opcode == WR_FLUSH;
		errno = extended ? post_extended(op, rkey, address) : ibv_post_send(qp, &wr, &bad);
		if (errno) {
			note(text, "refused with errno %d", errno);
			break;
		}
	}
	if (test->late_receives) {
		/* The responder answers RNR meanwhile; nothing here shows it. */
		for (int64_t end = now_ms() + 100; now_ms() < end; breathe()) {
			struct ibv_wc wc;
			if (ibv_poll_cq(cq, 1, &wc) != 0)
				note(text, "early %s ", status_name(wc.status));
		}
		meet('l');
	}
	if (posted)
		collect(text, posted);
}

static void run(const struct test *test, bool responder)
{
	char text[TEXT] = "", theirs[TEXT];
	union ibv_gid gid;
	make(test, responder);
	if (ibv_query_gid(context, 1, gid_index, &gid))
		fail("querying the GID");
	struct side local = { .qpn = qp->qp_num, .psn = (uint32_t)(rand() & 0xffffff), .rkey = target->rkey,
			      .address = (uintptr_t)buffer }, remote;
	memcpy(local.gid, &gid, 16);
	tell(&local, sizeof(local));
	hear(&remote, sizeof(remote));
	connect_to(test, &local, &remote, responder);
	if (responder) {
		if (!test->no_receives)
			post_receives(test);
		if (test->memory == WINDOW || test->memory == WINDOW_INVALIDATED)
			local.rkey = bind_window(test);
		if (test->memory == DEREGISTERED) {
			if (ibv_dereg_mr(target))
				fail("deregistering memory");
			target = NULL;
		}
		if (test->responder_error) {
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
			errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
			if (errno)
				fail("to ERR");
		}
	}
	tell(&local, sizeof(local));
	hear(&remote, sizeof(remote));
	if (responder) {
		if (test->late_receives) {
			meet('l');
			post_receives(test);
		}
		meet('d');
		collect(text, 0);
		state_and_events(text);
		tell(text, sizeof(text));
	} else {
		request(test, &remote, text);
		state_and_events(text);
		meet('d');
		hear(theirs, sizeof(theirs));
		theirs[TEXT - 1] = 0;
		printf("%s\t%s\t%s\n", test->name, text, theirs);
		fflush(stdout);
	}
	if (ah && ibv_destroy_ah(ah))
		fail("destroying the address handle");
	ah = NULL;
	/* Freed before the queue pair, because rxe waits long for a queue pair with a bound window. */
	if (mw && ibv_dealloc_mw(mw))
		fail("deallocating the memory window");
	mw = NULL;
	errno = ibv_destroy_qp(qp);
	if (errno)
		fail("destroying the queue pair");
	if (ibv_destroy_cq(cq) || ibv_dereg_mr(mr) || (target && ibv_dereg_mr(target)))
		fail("destroying objects");
}

static int listen_once(const char *port)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&any, sizeof(any)) || listen(listener, 1))
		fail("listening on port %s", port);
	int accepted = accept(listener, NULL, NULL);
	close(listener);
	return accepted;
}

static int connect_once(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_INET }, *found;
	if (getaddrinfo(host, port, &hints, &found))
		fail("resolving %s", host);
	int connected = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(connected, found->ai_addr, found->ai_addrlen))
		fail("connecting to %s", host);
	freeaddrinfo(found);
	return connected;
}

static bool knows_placement(void)
{
	struct ibv_device_attr_ex device;
	return !ibv_query_device_ex(context, NULL, &device) &&
	       (device.device_cap_flags_ex & CAP_PLACEMENT) == CAP_PLACEMENT;
}

int main(int argc, char **argv)
{
	bool responder = argc == 4 && !strcmp(argv[1], "-s");
	if (!responder && !(argc == 5 && !strcmp(argv[1], "-c"))) {
		fputs("usage: statuses -s PORT GID_INDEX | -c HOST PORT GID_INDEX\n", stderr);
		return 2;
	}
	gid_index = atoi(argv[argc - 1]);
	struct ibv_device **devices = ibv_get_device_list(NULL);
	if (!devices || !devices[0])
		fail("there is no device");
	context = ibv_open_device(devices[0]);
	if (!context)
		fail("opening the device");
	ibv_free_device_list(devices);
	pd = ibv_alloc_pd(context);
	other_pd = ibv_alloc_pd(context);
	buffer = aligned_alloc(4096, BUFFER);
	if (!pd || !other_pd || !buffer)
		fail("making objects");
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	srand((unsigned)getpid());
	peer = responder ? listen_once(argv[2]) : connect_once(argv[2], argv[3]);
	if (peer < 0)
		fail("meeting the other side");
	bool placement = knows_placement(), theirs;
	tell(&placement, sizeof(placement));
	hear(&theirs, sizeof(theirs));
	for (int i = 0; i < TESTS; i++) {
		if (!tests[i].placement || (placement && theirs))
			run(&tests[i], responder);
	}
	if (!responder)
		puts("end");
	ibv_dealloc_pd(other_pd);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	free(buffer);
	return 0;
}
