/* Shows that a READ brings the memory as it was before any later request of its queue pair.
 *
 * server:  reads -s PORT
 * client:  reads -c HOST PORT ROUNDS
 *
 * In each round the client writes a pattern into the server's memory, and when that is done posts, in one
 * list and without a fence, a READ of it and what changes it: a WRITE, a fetch-and-add, a compare-and-swap or
 * a SEND whose receive lies there. Of 8 bytes, 16 KiB and 1 MiB. The READ must bring the pattern. The client
 * prints
 *
 *     reads: N checked
 *
 * or how many brought what was written later, and exits with 1.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LARGEST = 1 << 20, RECEIVES = 4, READS = 16 };

enum later { WRITE, FETCH_ADD, COMPARE_SWAP, SEND, KINDS };
static const char *const names[KINDS] = { "WRITE", "FETCH_ADD", "CMP_SWAP", "SEND" };

struct remote {
	uint32_t qpn, psn, rkey, pad;
	uint64_t area;
	uint8_t gid[16];
};

/* All memory that is used, in one registration. */
struct memory {
	uint8_t area[LARGEST];
	uint8_t old[LARGEST];
	uint8_t fresh[LARGEST];
	uint8_t got[LARGEST];
	uint64_t fetched;
};

static struct memory *memory;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs("reads: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

static void fill(uint8_t *data, size_t length, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
	for (size_t i = 0; i < length; i += 8) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		memcpy(data + i, &state, 8);
	}
}

/* Opens the first device and makes a queue pair in INIT. */
static void open_device(struct remote *local)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!context)
		fail("cannot open a device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	if (!pd || posix_memalign((void **)&memory, 4096, sizeof *memory))
		fail("no protection domain or memory");
	memset(memory, 0, sizeof *memory);
	mr = ibv_reg_mr(pd, memory, sizeof *memory,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_ATOMIC);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	if (!mr || !cq)
		fail("cannot register memory or create a completion queue");
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	qp = ibv_create_qp(pd, &init);
	if (!qp)
		fail("cannot create a queue pair");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("cannot move the queue pair to INIT");
	union ibv_gid gid;
	if (ibv_query_gid(context, 1, 1, &gid))
		fail("no GID 1");
	*local = (struct remote){ .qpn = qp->qp_num, .psn = 0xffff00, .rkey = mr->rkey };
	local->area = (uintptr_t)memory->area;
	memcpy(local->gid, gid.raw, 16);
}

static void connect_qp(const struct remote *local, const struct remote *remote)
{
	struct ibv_port_attr port;
	if (ibv_query_port(qp->context, 1, &port))
		fail("cannot query the port");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = port.active_mtu,
		.dest_qp_num = remote->qpn,
		.rq_psn = remote->psn,
		.max_dest_rd_atomic = READS,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 } },
	};
	memcpy(attr.ah_attr.grh.dgid.raw, remote->gid, 16);
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("cannot move the queue pair to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = local->psn, .timeout = 14,
		.retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = READS };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC))
		fail("cannot move the queue pair to RTS");
}

static void transfer(int fd, const struct remote *local, struct remote *remote)
{
	if (write(fd, local, sizeof *local) != (ssize_t)sizeof *local ||
	    recv(fd, remote, sizeof *remote, MSG_WAITALL) != (ssize_t)sizeof *remote)
		fail("the peer went away");
}

static void ready(int fd)
{
	char byte = 1;
	if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
		fail("the peer went away");
}

/* Takes one completion if there is one. It must be a success, or the program ends. */
static int poll_once(struct ibv_wc *wc)
{
	int count = ibv_poll_cq(cq, 1, wc);
	if (count < 0)
		fail("ibv_poll_cq failed");
	if (count && wc->status != IBV_WC_SUCCESS)
		fail("work request %llu: %s", (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
	return count;
}

static void post_receive(void)
{
	struct ibv_sge sge = { (uintptr_t)memory->area, LARGEST, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		fail("ibv_post_recv refused");
}

static void serve(const char *port)
{
	struct remote local, remote;
	struct ibv_wc wc;
	char byte;
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port)) };
	int listener = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 1))
		fail("cannot listen on port %s", port);
	int fd = accept(listener, NULL, NULL);
	if (fd < 0)
		fail("nobody came");
	open_device(&local);
	for (int i = 0; i < RECEIVES; i++)
		post_receive();
	transfer(fd, &local, &remote);
	connect_qp(&local, &remote);
	ready(fd);
	while (recv(fd, &byte, 1, MSG_DONTWAIT) < 0)
		if (poll_once(&wc))
			post_receive();
	puts("reads: served");
}

static struct ibv_send_wr request(enum ibv_wr_opcode opcode, const struct remote *remote, struct ibv_sge *sge)
{
	struct ibv_send_wr wr = { .wr_id = opcode, .opcode = opcode, .sg_list = sge, .num_sge = 1 };
	wr.wr.rdma.remote_addr = remote->area;
	wr.wr.rdma.rkey = remote->rkey;
	return wr;
}

static void run(struct ibv_send_wr *list, int requests)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	if (ibv_post_send(qp, list, &bad))
		fail("ibv_post_send refused opcode %d", bad->opcode);
	while (requests)
		requests -= poll_once(&wc);
}

/* Whether the READ brought the pattern that was there before. */
static int check(const struct remote *remote, uint32_t length, enum later later, uint64_t round)
{
	struct ibv_sge old = { (uintptr_t)memory->old, length, mr->lkey };
	struct ibv_sge fresh = { (uintptr_t)memory->fresh, length, mr->lkey };
	struct ibv_sge got = { (uintptr_t)memory->got, length, mr->lkey };
	struct ibv_sge fetched = { (uintptr_t)&memory->fetched, 8, mr->lkey };
	fill(memory->old, length, 2 * round);
	fill(memory->fresh, length, 2 * round + 1);
	memset(memory->got, 0, length);
	struct ibv_send_wr before = request(IBV_WR_RDMA_WRITE, remote, &old);
	run(&before, 1);

	struct ibv_send_wr second;
	uint64_t first_word;
	memcpy(&first_word, memory->old, 8);
	switch (later) {
	case WRITE:
		second = request(IBV_WR_RDMA_WRITE, remote, &fresh);
		break;
	case SEND:
		second = request(IBV_WR_SEND, remote, &fresh);
		break;
	default:
		second = request(later == FETCH_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP,
				 remote, &fetched);
		second.wr.atomic.remote_addr = remote->area;
		second.wr.atomic.rkey = remote->rkey;
		second.wr.atomic.compare_add = later == FETCH_ADD ? 1 : first_word;
		second.wr.atomic.swap = ~first_word;
	}
	struct ibv_send_wr first = request(IBV_WR_RDMA_READ, remote, &got);
	first.next = &second;
	run(&first, 2);
	if ((later == FETCH_ADD || later == COMPARE_SWAP) && memory->fetched != first_word)
		fail("%s found something else", names[later]);
	return memcmp(memory->got, memory->old, length) == 0;
}

static void ask(const char *host, const char *port, int rounds)
{
	static const uint32_t lengths[] = { 8, 16 << 10, LARGEST };
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	struct remote local, remote;
	if (getaddrinfo(host, port, &hints, &address))
		fail("%s is no address", host);
	int fd = socket(address->ai_family, SOCK_STREAM, 0);
	if (connect(fd, address->ai_addr, address->ai_addrlen))
		fail("cannot connect to %s", host);
	open_device(&local);
	transfer(fd, &local, &remote);
	connect_qp(&local, &remote);
	ready(fd);
	int wrong = 0, all = 0;
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		for (enum later later = 0; later < KINDS; later++) {
			int bad = 0;
			for (int round = 0; round < rounds; round++)
				bad += !check(&remote, lengths[i], later, (uint64_t)all++);
			if (bad)
				fprintf(stderr, "reads: %d of %d READs of %u bytes brought what a later %s wrote\n",
					bad, rounds, lengths[i], names[later]);
			wrong += bad;
		}
	}
	close(fd);
	if (wrong)
		exit(1);
	printf("reads: %d checked\n", all);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(argv[2]);
	else if (argc == 5 && !strcmp(argv[1], "-c"))
		ask(argv[2], argv[3], atoi(argv[4]));
	else
		fail("usage: reads -s PORT, or reads -c HOST PORT ROUNDS");
	return 0;
}
