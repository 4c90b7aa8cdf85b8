/* Makes as many objects as a device allows, and one more; then destroys them.
 *
 *   exhaust objects QPS MRS    makes QPS queue pairs and MRS memory regions, then completion queues,
 *                              shared receive queues, address handles, protection domains and memory
 *                              windows up to what ibv_query_device says, and one more of each, which
 *                              must be refused with ENOMEM; destroys all, and does it once more: the
 *                              second time must take no memory that the first did not
 *   exhaust qps                as many queue pairs as there may be, and one more
 *   exhaust overrun            lets a completion queue overrun
 *   exhaust hold QPS MRS       makes some, prints "holding", and waits to be killed
 *
 * Prints "exhaust: NAME=NUMBER" lines and exits with 0, or says what was wrong and exits with 1.
 */
#include "common.h"

static void refused(const char *what, const void *object, int wanted)
{
	if (object)
		fail("one %s more than there may be was made", what);
	if (errno != wanted)
		fail("one %s more: %s, not %s", what, strerror(errno), strerror(wanted));
}

/* Makes objects until the limit, one more, and destroys them. */
#define FILL(name, type, limit, make, destroy)                                          \
	do {                                                                            \
		size_t most = (size_t)(limit), made = 0;                                \
		double began = now();                                                   \
		type **all = some(most + 1, sizeof *all);                               \
		for (; made < most; made++)                                             \
			if (!(errno = 0, all[made] = make))                             \
				fail(name " %zu of %zu: %s", made + 1, most, strerror(errno)); \
		errno = 0;                                                              \
		refused(name, make, ENOMEM);                                            \
		for (size_t i = 0; i < made; i++)                                       \
			if (destroy(all[i]))                                            \
				fail("cannot destroy " name " %zu", i);                 \
		free(all);                                                              \
		if (say)                                                                \
			report(name, (long)made), report(name "-ms", (long)((now() - began) * 1000)); \
	} while (0)

/* One round with all kinds of objects. Objects of counted kinds exist at the same time. */
static void everything(long qps, long mrs, int say)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	if (!pd || !cq)
		fail("not even one");
	double began = now();
	struct ibv_qp **qp = some((size_t)qps, sizeof *qp);
	for (long i = 0; i < qps; i++) {
		if (!(qp[i] = make_qp(pd, cq, IBV_QPT_RC, 16)))
			fail("queue pair %ld: %s", i + 1, strerror(errno));
		initialise(qp[i]);
	}
	char *area = aligned_alloc(PAGE, PAGE);
	struct ibv_mr **mr = some((size_t)mrs, sizeof *mr);
	for (long i = 0; i < mrs; i++)
		if (!(mr[i] = ibv_reg_mr(pd, area, PAGE, IBV_ACCESS_LOCAL_WRITE)))
			fail("memory region %ld: %s", i + 1, strerror(errno));
	if (say) {
		report("made-ms", (long)((now() - began) * 1000));
		report("resident-full", resident());
	}
	began = now();
	for (long i = 0; i < qps; i++)
		if (ibv_destroy_qp(qp[i]))
			fail("cannot destroy queue pair %ld", i + 1);
	for (long i = 0; i < mrs; i++)
		if (ibv_dereg_mr(mr[i]))
			fail("cannot deregister memory region %ld", i + 1);
	free(qp);
	free(mr);
	free(area);
	if (say)
		report("destroyed-ms", (long)((now() - began) * 1000));

	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } };
	FILL("cq", struct ibv_cq, limits.max_cq - 1, ibv_create_cq(context, 1, NULL, NULL, 0), ibv_destroy_cq);
	FILL("srq", struct ibv_srq, limits.max_srq, ibv_create_srq(pd, &srq), ibv_destroy_srq);
	FILL("ah", struct ibv_ah, limits.max_ah, ibv_create_ah(pd, &ah), ibv_destroy_ah);
	FILL("pd", struct ibv_pd, limits.max_pd - 1, ibv_alloc_pd(context), ibv_dealloc_pd);
	if (ibv_destroy_cq(cq) || ibv_dealloc_pd(pd))
		fail("something was left that uses the completion queue or the protection domain");
}

static void objects(long qps, long mrs)
{
	everything(qps, mrs, 1);
	long once = resident(), fds = descriptors();
	report("resident-once", once);
	everything(qps, mrs, 0);
	report("resident-twice", resident());
	if (descriptors() != fds)
		fail("%ld file descriptors became %ld", fds, descriptors());
}

static void all_qps(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	int say = 1;
	FILL("qp", struct ibv_qp, limits.max_qp, make_qp(pd, cq, IBV_QPT_RC, 1), ibv_destroy_qp);
	/* A request that is invalid, not too large, gives EINVAL. */
	struct ibv_cq *huge = ibv_create_cq(context, limits.max_cqe + 1, NULL, NULL, 0);
	refused("completion queue entry", huge, EINVAL);
	refused("work request", make_qp(pd, cq, IBV_QPT_RC, limits.max_qp_wr + 1), EINVAL);
}

/* The next asynchronous event, if one comes in time. */
static struct ibv_async_event event(int wait_ms)
{
	struct ibv_async_event event = { .event_type = (enum ibv_event_type)-1 };
	struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
	if (poll(&ready, 1, wait_ms) == 1) {
		if (ibv_get_async_event(context, &event))
			fail("ibv_get_async_event failed");
		ibv_ack_async_event(&event);
	}
	return event;
}

static void overrun(void)
{
	enum { ENTRIES = 8, SENDS = 32 };
	char area[64];
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, area, sizeof area, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, ENTRIES, NULL, NULL, 0);
	struct ibv_cq *other = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, SENDS), *peer = make_qp(pd, other, IBV_QPT_RC, SENDS);
	if (!mr || !qp || !peer)
		fail("cannot make two queue pairs");
	initialise(qp);
	initialise(peer);
	connect_to(qp, peer->qp_num, &gid, 7);
	connect_to(peer, qp->qp_num, &gid, 7);
	if (cq->cqe > ENTRIES)
		fail("%d entries where %d were asked for: too large to overrun here", cq->cqe, ENTRIES);
	struct ibv_sge sge = { (uintptr_t)area, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)area + 8;
	wr.wr.rdma.rkey = mr->rkey;
	for (wr.wr_id = 0; wr.wr_id < SENDS; wr.wr_id++)
		if (ibv_post_send(qp, &wr, &bad) && errno != EINVAL)
			break;
	int cq_error = 0, qp_fatal = 0;
	for (double end = now() + 10; (!cq_error || !qp_fatal) && now() < end;) {
		struct ibv_async_event got = event(1000);
		if (got.event_type == IBV_EVENT_CQ_ERR && got.element.cq == cq)
			cq_error++;
		else if (got.event_type == IBV_EVENT_QP_FATAL && got.element.qp == qp)
			qp_fatal++;
		else if ((int)got.event_type != -1)
			fail("unexpected event %s", ibv_event_type_str(got.event_type));
	}
	if (cq_error != 1 || qp_fatal != 1 || (int)event(100).event_type != -1)
		fail("events: CQ_ERR %d, QP_FATAL %d; not one of each and no more", cq_error, qp_fatal);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) || attr.qp_state != IBV_QPS_ERR)
		fail("the queue pair is in state %d, not ERR", attr.qp_state);
	struct ibv_wc wc;
	int completions = 0, count;
	while ((count = ibv_poll_cq(cq, 1, &wc)) == 1)
		if (wc.wr_id != (uint64_t)completions++)
			fail("completion %d is of %ld", completions, (long)wc.wr_id);
	if (completions != ENTRIES || count >= 0)
		fail("%d completions, then %d; not %d, then an error", completions, count, ENTRIES);
	if (ibv_destroy_qp(qp) || ibv_destroy_qp(peer) || ibv_destroy_cq(cq) || ibv_destroy_cq(other) ||
	    ibv_dereg_mr(mr) || ibv_dealloc_pd(pd))
		fail("cannot clean up after an overrun");
}

static void hold(long qps, long mrs)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	char *area = aligned_alloc(PAGE, PAGE);
	for (long i = 0; i < qps; i++) {
		struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 4);
		if (!qp)
			fail("queue pair %ld: %s", i + 1, strerror(errno));
		initialise(qp);
	}
	for (long i = 0; i < mrs; i++)
		if (!ibv_reg_mr(pd, area, PAGE, IBV_ACCESS_LOCAL_WRITE))
			fail("memory region %ld: %s", i + 1, strerror(errno));
	puts("exhaust: holding");
	fflush(stdout);
	for (;;)
		pause();
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";
	open_device();
	if (!strcmp(mode, "objects") && count == 4)
		objects(atol(arguments[2]), atol(arguments[3]));
	else if (!strcmp(mode, "qps"))
		all_qps();
	else if (!strcmp(mode, "overrun"))
		overrun();
	else if (!strcmp(mode, "hold") && count == 4)
		hold(atol(arguments[2]), atol(arguments[3]));
	else
		fail("usage: exhaust objects QPS MRS | qps | overrun | hold QPS MRS");
	puts("exhaust: done");
	return 0;
}
