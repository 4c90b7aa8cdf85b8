/* A peer that never polls, and one that sends to it nevertheless.
 *
 *   mute -s PORT     makes queue pairs, posts the receives that the client asks for, and then polls nothing
 *                    and reads no event until the client has ended
 *   mute -c HOST PORT
 *                    sends to it in every way, and checks that each ends as the manual says
 *
 * Both print "mute: NAME=NUMBER" lines, resident memory in KiB among them, and exit with 0, or say what
 * was wrong and exit with 1.
 */
#include "common.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

/* The queue pairs, in this order on both sides. */
enum { NO_RECEIVES, PATIENT, WRITES, SMALL_CQ, DATAGRAMS, KINDS };
enum { DEPTH = 64, AREA = 1 << 16, QKEY = 0x11, FLOOD = 20000, SMALL = 4, WAIT_S = 20 };

struct side {
	uint32_t qpn[KINDS], rkey;
	uint64_t area;
	union ibv_gid gid;
};

static struct ibv_qp *qp[KINDS];
static struct ibv_cq *cq[KINDS];
static struct ibv_mr *mr;
static char *area;
static struct ibv_pd *pd;

static struct side make(void)
{
	struct side side = { .gid = gid };
	pd = ibv_alloc_pd(context);
	area = aligned_alloc(PAGE, AREA);
	memset(area, 0, AREA);
	mr = ibv_reg_mr(pd, area, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		fail("cannot register memory");
	for (int i = 0; i < KINDS; i++) {
		cq[i] = ibv_create_cq(context, i == SMALL_CQ ? SMALL : 4 * DEPTH, NULL, NULL, 0);
		qp[i] = cq[i] ? make_qp(pd, cq[i], i == DATAGRAMS ? IBV_QPT_UD : IBV_QPT_RC, DEPTH) : NULL;
		if (!qp[i])
			fail("cannot make queue pair %d", i);
		side.qpn[i] = qp[i]->qp_num;
		if (i != DATAGRAMS) {
			initialise(qp[i]);
			continue;
		}
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
		if (ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
			fail("INIT");
		attr.qp_state = IBV_QPS_RTR;
		if (ibv_modify_qp(qp[i], &attr, IBV_QP_STATE))
			fail("RTR");
		attr.qp_state = IBV_QPS_RTS;
		if (ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
			fail("RTS");
	}
	side.rkey = mr->rkey;
	side.area = (uintptr_t)area;
	return side;
}

static void join(const struct side *peer)
{
	for (int i = 0; i < DATAGRAMS; i++)
		connect_to(qp[i], peer->qpn[i], &peer->gid, i == PATIENT ? 7 : 2);
}

static struct side exchange(int fd, const struct side *own)
{
	struct side peer;
	if (write(fd, own, sizeof *own) != sizeof *own || recv(fd, &peer, sizeof peer, MSG_WAITALL) != sizeof peer)
		fail("the peer said nothing");
	return peer;
}

static void receives(struct ibv_qp *of, int count)
{
	struct ibv_sge sge = { (uintptr_t)area, AREA / 2, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	while (count--)
		if (ibv_post_recv(of, &wr, &bad))
			fail("ibv_post_recv refused");
}

static void serve(const char *port)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port)) };
	int listener = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
	char byte = 0;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 1))
		fail("cannot listen on port %s", port);
	int fd = accept(listener, NULL, NULL);
	open_device();
	struct side own = make();
	/* More receives than their completion queue holds: it overruns, because it is not polled. */
	receives(qp[SMALL_CQ], 2 * SMALL);
	receives(qp[DATAGRAMS], DEPTH);
	long before = resident();
	struct side peer = exchange(fd, &own);
	join(&peer);
	if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) < 0)
		fail("the peer went away early");
	/* Polls nothing and reads no event; only waits for the end of the connection. */
	while (read(fd, &byte, 1) == 1)
		;
	report("resident-before", before);
	report("resident-after", resident());
	struct ibv_wc wc;
	int got = 0;
	while (ibv_poll_cq(cq[DATAGRAMS], 1, &wc) == 1)
		got++;
	report("datagrams", got);
	if (memcmp(area + AREA / 2, "written", 8))
		fail("what was written is not there");
}

static int post(int kind, enum ibv_wr_opcode opcode, uint32_t length, const struct side *peer, struct ibv_ah *ah)
{
	struct ibv_sge sge = { (uintptr_t)area, length, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = peer->qpn[kind];
		wr.wr.ud.remote_qkey = QKEY;
	} else {
		wr.wr.rdma.remote_addr = peer->area + AREA / 2;
		wr.wr.rdma.rkey = peer->rkey;
	}
	return ibv_post_send(qp[kind], &wr, &bad);
}

/* The status of the next completion, or -1 if none comes in time. */
static int completion(int kind, double seconds)
{
	struct ibv_wc wc;
	for (double end = now() + seconds; now() < end;)
		if (ibv_poll_cq(cq[kind], 1, &wc) == 1)
			return (int)wc.status;
	return -1;
}

static void wants(const char *what, int status, int wanted)
{
	if (status != wanted)
		fail("%s: %s, not %s", what, status < 0 ? "nothing" : ibv_wc_status_str((enum ibv_wc_status)status),
		     wanted < 0 ? "nothing" : ibv_wc_status_str((enum ibv_wc_status)wanted));
}

static void act(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	char byte = 0;
	if (getaddrinfo(host, port, &hints, &address))
		fail("cannot resolve %s", host);
	int fd = socket(address->ai_family, SOCK_STREAM, 0);
	if (connect(fd, address->ai_addr, address->ai_addrlen))
		fail("cannot connect to %s", host);
	open_device();
	struct side own = make(), peer = exchange(fd, &own);
	join(&peer);
	if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
		fail("the peer went away");
	long before = resident();

	/* No receive was posted: after the allowed retries an error comes (man 3 ibv_poll_cq). */
	if (post(NO_RECEIVES, IBV_WR_SEND, 100, &peer, NULL))
		fail("a send was refused");
	wants("a send without a receive", completion(NO_RECEIVES, WAIT_S), IBV_WC_RNR_RETRY_EXC_ERR);

	/* With unlimited retries the queue becomes full, and then posting fails (man 3 ibv_post_send). */
	int error = 0, posted = 0;
	while (!(error = post(PATIENT, IBV_WR_SEND, AREA / 2, &peer, NULL)))
		posted++;
	if (error != ENOMEM || posted < DEPTH)
		fail("after %d sends: %s, not ENOMEM", posted, strerror(error));
	wants("sends with endless retries", completion(PATIENT, 1), -1);

	/* One-sided operations complete although the peer does not poll. */
	strcpy(area, "written");
	for (int i = 0; i < FLOOD; i++) {
		if (post(WRITES, IBV_WR_RDMA_WRITE, 4096, &peer, NULL))
			fail("a write was refused");
		wants("a write", completion(WRITES, WAIT_S), IBV_WC_SUCCESS);
	}

	/* The peer's completion queue overruns, and its queue pair ends. */
	int status = IBV_WC_SUCCESS, sent = 0;
	while (status == IBV_WC_SUCCESS && sent++ < 2 * SMALL) {
		if (post(SMALL_CQ, IBV_WR_SEND, 100, &peer, NULL))
			fail("a send was refused");
		status = completion(SMALL_CQ, WAIT_S);
	}
	wants("sends into an overrun completion queue", status, IBV_WC_RETRY_EXC_ERR);

	/* Datagrams without a receive are lost. */
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .sgid_index = 1, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	if (!ah)
		fail("no address handle");
	for (int i = 0; i < FLOOD; i++) {
		if (post(DATAGRAMS, IBV_WR_SEND, 1000, &peer, ah))
			fail("a datagram was refused");
		wants("a datagram", completion(DATAGRAMS, WAIT_S), IBV_WC_SUCCESS);
	}
	report("resident-before", before);
	report("resident-after", resident());
	close(fd);
}

int main(int count, char **arguments)
{
	if (count == 3 && !strcmp(arguments[1], "-s"))
		serve(arguments[2]);
	else if (count == 4 && !strcmp(arguments[1], "-c"))
		act(arguments[2], arguments[3]);
	else
		fail("usage: mute -s PORT | mute -c HOST PORT");
	return 0;
}
