/* Asks two queue pairs of one device, which are connected to each other, for every change of the migration
 * state, and compares errno and state with a table (IBTA 17.2.8.1; Linux' rvt_modify_qp). The device has two
 * ports, and the addresses of both are given:
 *
 *   transitions ADDRESS1 ADDRESS2 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[64];
static struct {
	uint8_t port, index;
	union ibv_gid gid;
} way[2];
static int checks, wrong;

static const char *const MIGS[] = { "MIGRATED", "REARM", "ARMED" };
static const char *const STATES[] = { "RESET", "INIT", "RTR", "RTS", "SQD" };

static void fail(const char *what)
{
	fprintf(stderr, "transitions: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Compares, and says what was asked for if it is not as expected. */
static void expect(int got, int expected, const char *format, ...)
{
	va_list arguments;
	checks++;
	if (got == expected)
		return;
	wrong++;
	printf("transitions: ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf(": %d instead of %d\n", got, expected);
}

static void find(const char *address, int n)
{
	struct ibv_gid_entry entries[256];
	struct in6_addr wanted = { .s6_addr = { [10] = 0xff, [11] = 0xff } };
	ssize_t count = ibv_query_gid_table(context, entries, 256, 0), at = 0;
	inet_pton(AF_INET, address, &wanted.s6_addr[12]);
	while (at < count && memcmp(entries[at].gid.raw, &wanted, 16))
		at++;
	if (at >= count)
		fail(address);
	way[n].port = (uint8_t)entries[at].port_num;
	way[n].index = (uint8_t)entries[at].gid_index;
	way[n].gid = entries[at].gid;
}

static struct ibv_ah_attr vector(int n)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = way[n].port,
		.grh = { .sgid_index = way[n].index, .hop_limit = 64, .dgid = way[n].gid },
	};
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		fail("ibv_create_qp");
	return qp;
}

/* Takes a queue pair from the state before to this one. */
static void step(struct ibv_qp *qp, struct ibv_qp *peer, enum ibv_qp_state to)
{
	int rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD, mask = IBV_QP_STATE;
	struct ibv_qp_attr attr = {
		.qp_state = to, .port_num = way[0].port, .qkey = 1, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num, .ah_attr = vector(0), .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7, .min_rnr_timer = 1,
	};
	if (to == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	if (to == IBV_QPS_RTR && !ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			(rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
	if (to == IBV_QPS_RTS)
		mask |= IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						      IBV_QP_MAX_QP_RD_ATOMIC : 0);
	errno = ibv_modify_qp(qp, &attr, mask);
	if (errno)
		fail(STATES[to]);
	struct ibv_qp_init_attr init;
	/* The next change is refused while the send queue is drained. */
	do
		if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init))
			fail("ibv_query_qp");
	while (to == IBV_QPS_SQD && attr.sq_draining);
}

static void bring(struct ibv_qp *qp, struct ibv_qp *peer, enum ibv_qp_state to)
{
	for (int state = IBV_QPS_INIT; state <= (int)to; state++)
		step(qp, peer, state);
}

static struct ibv_qp_attr query(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(qp, &attr, IBV_QP_PATH_MIG_STATE | IBV_QP_ALT_PATH | IBV_QP_AV, &init))
		fail("ibv_query_qp");
	return attr;
}

static int load(struct ibv_qp *qp, int n, int mask)
{
	struct ibv_qp_attr attr = {
		.alt_ah_attr = vector(n), .alt_port_num = way[n].port, .alt_timeout = 15,
		.path_mig_state = IBV_MIG_REARM,
	};
	return ibv_modify_qp(qp, &attr, IBV_QP_ALT_PATH | mask);
}

static int wish(struct ibv_qp *qp, enum ibv_mig_state state)
{
	struct ibv_qp_attr attr = { .path_mig_state = state };
	return ibv_modify_qp(qp, &attr, IBV_QP_PATH_MIG_STATE);
}

/* UC is ARMED by messages, one each way. */
static void talk(struct ibv_qp *qp[2])
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_wc wc;
	for (int n = 0; n < 2; n++)
		if (ibv_post_recv(qp[n], &recv, &bad_recv))
			fail("ibv_post_recv");
	for (int n = 0; n < 2; n++)
		if (ibv_post_send(qp[n], &send, &bad_send))
			fail("ibv_post_send");
	for (int left = 4; left > 0;) {
		int count = ibv_poll_cq(cq, 1, &wc);
		if (count < 0 || (count && wc.status))
			fail("ibv_poll_cq");
		left -= count;
	}
}

/* Two connected queue pairs, of which the first is in these states. */
static void pair(struct ibv_qp *qp[2], enum ibv_qp_type type, enum ibv_qp_state state, enum ibv_mig_state mig)
{
	qp[0] = make(type);
	qp[1] = make(type);
	enum ibv_qp_state first = state > IBV_QPS_RTS ? IBV_QPS_RTS : state;
	bring(qp[1], qp[0], IBV_QPS_RTS);
	bring(qp[0], qp[1], first);
	for (int n = 0; n < 2 && mig >= (n ? IBV_MIG_ARMED : IBV_MIG_REARM); n++)
		if ((errno = load(qp[n], 1, IBV_QP_PATH_MIG_STATE)))
			fail("loading");
	if (mig == IBV_MIG_ARMED && type == IBV_QPT_UC)
		talk(qp);
	while (mig == IBV_MIG_ARMED && (query(qp[0]).path_mig_state != mig || query(qp[1]).path_mig_state != mig))
		usleep(100);
	if (state > IBV_QPS_RTS)
		step(qp[0], qp[1], state);
}

static void destroy(struct ibv_qp *qp[2])
{
	for (int n = 0; n < 2; n++)
		if ((errno = ibv_destroy_qp(qp[n])))
			fail("ibv_destroy_qp");
}

/* The errno of a wish, and the migration state that follows. */
static int ruled(enum ibv_qp_state state, enum ibv_mig_state now, enum ibv_mig_state wish,
		 enum ibv_mig_state *then)
{
	int sends = state == IBV_QPS_RTS || state == IBV_QPS_SQD;
	*then = now;
	if (wish == IBV_MIG_ARMED || !sends)
		return EINVAL; /* only the peer's packets lead there; no other state takes the attribute */
	if (wish == IBV_MIG_REARM) {
		if (state != IBV_QPS_RTS || now == IBV_MIG_ARMED)
			return EINVAL;
		*then = IBV_MIG_REARM;
		return 0;
	}
	if (now == IBV_MIG_REARM)
		return EINVAL; /* the peer has not confirmed yet */
	*then = IBV_MIG_MIGRATED;
	return 0;
}

static void wishes(enum ibv_qp_type type)
{
	const char *kind = type == IBV_QPT_RC ? "RC" : "UC";
	for (int state = IBV_QPS_RESET; state <= IBV_QPS_SQD; state++) {
		for (int mig = IBV_MIG_MIGRATED; mig <= IBV_MIG_ARMED; mig++) {
			if (mig && state < IBV_QPS_RTS)
				continue; /* an alternate path arms in RTS */
			for (int want = IBV_MIG_MIGRATED; want <= IBV_MIG_ARMED; want++) {
				struct ibv_qp *qp[2];
				enum ibv_mig_state then;
				pair(qp, type, state, mig);
				int expected = ruled(state, mig, want, &then);
				/* Who has never loaded an alternate path gets one first, if it can. */
				int loads = mig == IBV_MIG_MIGRATED && want == IBV_MIG_REARM;
				int got = loads ? load(qp[0], 1, IBV_QP_PATH_MIG_STATE) : wish(qp[0], want);
				expect(got, expected, "%s, %s, %s asked for %s", kind, STATES[state], MIGS[mig], MIGS[want]);
				expect(query(qp[0]).path_mig_state, then, "%s, %s, %s asked for %s: state", kind,
				       STATES[state], MIGS[mig], MIGS[want]);
				if (!got && mig == IBV_MIG_ARMED) {
					struct ibv_async_event event;
					if (ibv_get_async_event(context, &event))
						fail("ibv_get_async_event");
					expect(event.event_type, IBV_EVENT_PATH_MIG, "%s: event", kind);
					ibv_ack_async_event(&event);
					expect(query(qp[0]).ah_attr.port_num, way[1].port, "%s: port", kind);
					if (type == IBV_QPT_RC) { /* its peer has followed, and is told as well */
						if (ibv_get_async_event(context, &event))
							fail("ibv_get_async_event");
						expect(event.event_type, IBV_EVENT_PATH_MIG, "%s: event", kind);
						ibv_ack_async_event(&event);
					}
				}
				destroy(qp);
			}
		}
	}
}

static void masks(void)
{
	struct ibv_qp *qp[2];
	pair(qp, IBV_QPT_RC, IBV_QPS_RTS, IBV_MIG_MIGRATED);
	expect(wish(qp[0], IBV_MIG_REARM), EINVAL, "REARM without an alternate path");
	expect(load(qp[0], 1, 0), 0, "an alternate path alone");
	expect(query(qp[0]).path_mig_state, IBV_MIG_MIGRATED, "an alternate path alone: state");
	expect(wish(qp[0], IBV_MIG_REARM), 0, "REARM after an alternate path was loaded");
	struct ibv_qp_attr loaded = query(qp[0]);
	expect(loaded.alt_port_num, way[1].port, "alt_port_num");
	expect(loaded.alt_timeout, 15, "alt_timeout");
	expect(loaded.alt_ah_attr.grh.sgid_index, way[1].index, "sgid_index");
	expect(memcmp(&loaded.alt_ah_attr.grh.dgid, &way[1].gid, 16), 0, "dgid");
	destroy(qp);

	/* On the way to RTR an alternate path may be loaded, but not armed; on the way to RTS both. */
	for (int type = IBV_QPT_RC; type <= IBV_QPT_UC; type++) {
		int rc = type == IBV_QPT_RC;
		qp[0] = make(type);
		qp[1] = make(type);
		bring(qp[1], qp[0], IBV_QPS_RTS);
		bring(qp[0], qp[1], IBV_QPS_INIT);
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp[1]->qp_num,
			.ah_attr = vector(0), .min_rnr_timer = 1, .alt_ah_attr = vector(1),
			.alt_port_num = way[1].port, .alt_timeout = 14, .path_mig_state = IBV_MIG_REARM,
			.timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		};
		int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_ALT_PATH | (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
		expect(ibv_modify_qp(qp[0], &attr, mask | IBV_QP_PATH_MIG_STATE), EINVAL, "armed in RTR");
		expect(ibv_modify_qp(qp[0], &attr, mask), 0, "loaded in RTR");
		attr.qp_state = IBV_QPS_RTS;
		mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE |
		       (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
		expect(ibv_modify_qp(qp[0], &attr, mask), 0, "armed in RTS");
		expect(query(qp[0]).path_mig_state, IBV_MIG_REARM, "armed in RTS: state");
		destroy(qp);
	}

	/* UD has no paths of its own. */
	qp[0] = make(IBV_QPT_UD);
	qp[1] = make(IBV_QPT_UD);
	bring(qp[0], qp[1], IBV_QPS_RTS);
	expect(load(qp[0], 1, 0), EINVAL, "UD: an alternate path");
	expect(load(qp[0], 1, IBV_QP_PATH_MIG_STATE), EINVAL, "UD: an armed alternate path");
	for (int want = IBV_MIG_MIGRATED; want <= IBV_MIG_ARMED; want++)
		expect(wish(qp[0], want), EINVAL, "UD asked for %s", MIGS[want]);
	destroy(qp);
}

static void values(void)
{
	static const struct {
		const char *what;
		int port, alt_port, index, pkey, timeout, global, dgid, expected;
	} cases[] = {
		{ "a right one", 2, 2, -1, 0, 14, 1, 1, 0 },
		{ "port 0", 0, 0, -1, 0, 14, 1, 1, EINVAL },
		{ "alt_port_num 0", 2, 0, -1, 0, 14, 1, 1, EINVAL },
		{ "port 3 of 2", 3, 3, -1, 0, 14, 1, 1, EINVAL },
		{ "alt_port_num 3", 2, 3, -1, 0, 14, 1, 1, EINVAL },
		{ "an empty GID index", 2, 2, 200, 0, 14, 1, 1, EINVAL },
		{ "P_Key index 1", 2, 2, -1, 1, 14, 1, 1, EINVAL },
		{ "a timeout of 6 bits", 2, 2, -1, 0, 32, 1, 1, EINVAL },
		{ "no GRH", 2, 2, -1, 0, 14, 0, 1, EINVAL },
		{ "no destination", 2, 2, -1, 0, 14, 1, 0, EINVAL },
	};
	for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
		struct ibv_qp *qp[2];
		pair(qp, IBV_QPT_RC, IBV_QPS_RTS, IBV_MIG_MIGRATED);
		struct ibv_qp_attr attr = {
			.alt_ah_attr = vector(1), .alt_port_num = (uint8_t)cases[n].alt_port,
			.alt_pkey_index = (uint16_t)cases[n].pkey, .alt_timeout = (uint8_t)cases[n].timeout,
			.path_mig_state = IBV_MIG_REARM,
		};
		attr.alt_ah_attr.port_num = (uint8_t)cases[n].port;
		attr.alt_ah_attr.is_global = (uint8_t)cases[n].global;
		if (cases[n].index >= 0)
			attr.alt_ah_attr.grh.sgid_index = (uint8_t)cases[n].index;
		if (!cases[n].dgid)
			memset(&attr.alt_ah_attr.grh.dgid, 0, 16);
		expect(ibv_modify_qp(qp[0], &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), cases[n].expected,
		       "%s", cases[n].what);
		attr = query(qp[0]);
		int fine = !cases[n].expected;
		expect(attr.path_mig_state, fine ? IBV_MIG_REARM : IBV_MIG_MIGRATED, "%s: state", cases[n].what);
		expect(attr.alt_port_num, fine ? way[1].port : 0, "%s: alt_port_num", cases[n].what);
		destroy(qp);
	}
	/* The address vector in use with the number of another port: the one by that port. */
	struct ibv_qp *qp[2];
	pair(qp, IBV_QPT_RC, IBV_QPS_RTS, IBV_MIG_MIGRATED);
	struct ibv_qp_attr attr = query(qp[0]);
	attr.alt_ah_attr = attr.ah_attr;
	attr.alt_port_num = way[1].port;
	attr.path_mig_state = IBV_MIG_REARM;
	expect(ibv_modify_qp(qp[0], &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0, "another port");
	attr = query(qp[0]);
	expect(attr.alt_ah_attr.port_num, way[1].port, "another port: port_num");
	expect(memcmp(&attr.alt_ah_attr.grh.dgid, &way[1].gid, 16), 0, "another port: dgid");
	destroy(qp);
}

int main(int argc, char **argv)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	if (argc != 3 || !list || !count)
		return 2;
	context = ibv_open_device(list[0]);
	if (!context || !(pd = ibv_alloc_pd(context)) || !(cq = ibv_create_cq(context, 64, NULL, NULL, 0)) ||
	    !(mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE)))
		fail("opening");
	find(argv[1], 0);
	find(argv[2], 1);
	wishes(IBV_QPT_RC);
	wishes(IBV_QPT_UC);
	masks();
	values();
	printf("transitions: checks=%d wrong=%d\n", checks, wrong);
	return wrong != 0;
}
