/* Many connected queue pairs that do nothing.
 *
 *   crowd serve PORT COUNT
 *   crowd connect HOST PORT COUNT
 *
 * Both ends make COUNT connections, and send one message by each. Each prints
 *
 *     crowd: resident-before=KIB     when the first queue pair is connected
 *     crowd: resident-after=KIB      when all are, and each has sent or received its message
 *
 * and then waits until it is killed. The server prints "crowd: listening" before anything else.
 */
#include "common.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

enum { RESOLVE_MS = 5000, DEPTH = 16, LENGTH = 8 };

static struct rdma_event_channel *channel;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[LENGTH];
static long wanted, completed;

/* The next event, which must be this one. */
static struct rdma_cm_id *expect(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	if (rdma_get_cm_event(channel, &event))
		fail("the event channel broke");
	if (event->event != kind)
		fail("%s, status %d, and not %s", rdma_event_str(event->event), event->status, rdma_event_str(kind));
	struct rdma_cm_id *id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

static void add_queue_pair(struct rdma_cm_id *id)
{
	if (!pd) {
		pd = ibv_alloc_pd(id->verbs);
		cq = ibv_create_cq(id->verbs, (int)wanted + 1, NULL, NULL, 0);
		mr = pd ? ibv_reg_mr(pd, buffer, LENGTH, IBV_ACCESS_LOCAL_WRITE) : NULL;
		if (!pd || !cq || !mr)
			fail("no protection domain, completion queue or region");
	}
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	if (rdma_create_qp(id, pd, &attr))
		fail("no queue pair: %s", strerror(errno));
}

static struct ibv_sge whole(void)
{
	return (struct ibv_sge){ .addr = (uintptr_t)buffer, .length = LENGTH, .lkey = mr->lkey };
}

/* Takes completions until there were so many. */
static void complete(long count)
{
	struct ibv_wc wc;
	while (completed < count) {
		int got = ibv_poll_cq(cq, 1, &wc);
		if (got < 0 || (got && wc.status))
			fail("status %d", got < 0 ? got : (int)wc.status);
		completed += got;
	}
}

static void serve(const char *port)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	struct rdma_cm_id *listener;
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (struct sockaddr *)&any) ||
	    rdma_listen(listener, 16))
		fail("cannot listen on port %s", port);
	puts("crowd: listening");
	fflush(stdout);
	for (long n = 0; n < wanted; n++) {
		struct rdma_cm_id *id = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		add_queue_pair(id);
		struct ibv_sge sge = whole();
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		struct rdma_conn_param answer = { .retry_count = 7, .rnr_retry_count = 7 };
		if (ibv_post_recv(id->qp, &wr, &bad) || rdma_accept(id, &answer))
			fail("cannot accept");
		expect(RDMA_CM_EVENT_ESTABLISHED);
		complete(n + 1);
		if (!n)
			report("resident-before", resident());
	}
}

static void act(const char *host, const char *port)
{
	struct sockaddr_in server = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	if (inet_pton(AF_INET, host, &server.sin_addr) != 1)
		fail("%s is no address", host);
	for (long n = 0; n < wanted; n++) {
		struct rdma_cm_id *id;
		if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
		    rdma_resolve_addr(id, NULL, (struct sockaddr *)&server, RESOLVE_MS))
			fail("cannot resolve");
		expect(RDMA_CM_EVENT_ADDR_RESOLVED);
		if (rdma_resolve_route(id, RESOLVE_MS))
			fail("cannot resolve the route");
		expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
		add_queue_pair(id);
		struct rdma_conn_param ask = { .retry_count = 7, .rnr_retry_count = 7 };
		if (rdma_connect(id, &ask))
			fail("cannot connect");
		expect(RDMA_CM_EVENT_ESTABLISHED);
		struct ibv_sge sge = whole();
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		if (ibv_post_send(id->qp, &wr, &bad))
			fail("cannot send");
		complete(n + 1);
		if (!n)
			report("resident-before", resident());
	}
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";
	channel = rdma_create_event_channel();
	if (!channel)
		fail("no event channel");
	if (count == 4 && !strcmp(mode, "serve")) {
		wanted = atol(arguments[3]);
		serve(arguments[2]);
	} else if (count == 5 && !strcmp(mode, "connect")) {
		wanted = atol(arguments[4]);
		act(arguments[2], arguments[3]);
	} else {
		fail("usage: crowd serve PORT COUNT | connect HOST PORT COUNT");
	}
	report("resident-after", resident());
	for (;;)
		pause();
}
