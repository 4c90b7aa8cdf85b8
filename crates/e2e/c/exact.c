/* Shows that each operation is executed exactly once and in order, whatever the paths do.
 *
 * server:  exact -s PORT [OWN OTHER [EVERY]]
 * client:  exact -c HOST PORT SECONDS [OWN OTHER [EVERY]]
 *
 * For SECONDS, or until SIGINT, the client posts rounds of a fetch-and-add, an atomic write of the round's number, a
 * numbered send, a write and a read back of what it wrote. It checks that each fetch-and-add returns
 * one more than the last, that the bytes read are the bytes written; the server checks that messages
 * arrive in order, none missing, none twice, none corrupt, and each after the number of its round,
 * which never goes back. The client's last message says how many there were. Both print a line
 *
 *     exact: rounds=N counter=N
 *
 * OWN and OTHER are two addresses of this host: with them, the queue pair has a primary and an alternate
 * path, which apm.h keeps loaded; EVERY milliseconds it is made to migrate. Then the client tells of each
 * migration how long nothing completed.
 *
 * Both exit with 0, or say what was wrong and exit with 1.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "apm.h"

enum { DEPTH = 8, MESSAGE = 12345, RECEIVES = 64, LAST = 0x7fffffff, LINGER_MS = 5000 };

struct message {
	uint64_t number;
	uint32_t kind; /* 0, or LAST with number saying how many came before */
	uint8_t data[MESSAGE];
};

struct remote {
	uint32_t qpn, psn, rkey, pad;
	uint64_t counter, area, round;
	uint8_t gid[16];
	uint8_t other_gid[16];
};

/* All memory that is used, in one registration. */
struct memory {
	uint64_t counter;
	uint64_t round;
	uint64_t fetched[DEPTH];
	uint64_t rounds[DEPTH];
	struct message sends[DEPTH];
	uint8_t written[DEPTH][MESSAGE];
	uint8_t readback[DEPTH][MESSAGE];
	uint8_t area[DEPTH][MESSAGE];
	struct message receives[RECEIVES];
};

static struct memory *memory;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static volatile sig_atomic_t interrupted;

static void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs("exact: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

static void fill(uint8_t *data, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
	for (int i = 0; i < MESSAGE; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		data[i] = (uint8_t)state;
	}
}

static void check(const uint8_t *data, uint64_t seed, const char *what)
{
	static uint8_t expected[MESSAGE];
	fill(expected, seed);
	if (memcmp(data, expected, MESSAGE) != 0)
		fail("%s %llu is corrupt", what, (unsigned long long)seed);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void post_receive(int slot)
{
	struct ibv_sge sge = { (uintptr_t)&memory->receives[slot], sizeof(struct message), mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		fail("ibv_post_recv refused");
}

static void post(struct ibv_send_wr *wr, void *local, uint32_t length)
{
	struct ibv_send_wr *bad;
	struct ibv_sge sge = { (uintptr_t)local, length, mr->lkey };
	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_SIGNALED;
	if (ibv_post_send(qp, wr, &bad))
		fail("ibv_post_send refused opcode %d", wr->opcode);
}

/* Waits for the next completion, which must be a success. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	apm_completed(now());
	if (count < 0)
		fail("ibv_poll_cq failed");
	if (wc.status != IBV_WC_SUCCESS)
		fail("work request %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	return wc;
}

/* Opens the first device and makes a queue pair in INIT. */
static void open_device(struct remote *local)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	if (!list || count == 0)
		fail("no device");
	struct ibv_context *context = ibv_open_device(list[0]);
	if (!context)
		fail("cannot open %s", ibv_get_device_name(list[0]));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	if (posix_memalign((void **)&memory, 4096, sizeof *memory))
		fail("no memory");
	memset(memory, 0, sizeof *memory);
	mr = ibv_reg_mr(pd, memory, sizeof *memory,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_ATOMIC);
	cq = ibv_create_cq(context, 5 * DEPTH + RECEIVES, NULL, NULL, 0);
	if (!mr || !cq)
		fail("cannot register memory or create a completion queue");
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 5 * DEPTH + 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
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
	if (apm_open(context) || ibv_query_gid(context, apm.port[0], apm.index[0], &gid))
		fail("no GID %d, or none for an address", apm.index[0]);
	local->qpn = qp->qp_num;
	local->psn = (uint32_t)(now() * 1e6) & 0xffffff;
	local->rkey = mr->rkey;
	local->counter = (uintptr_t)&memory->counter;
	local->area = (uintptr_t)memory->area;
	local->round = (uintptr_t)&memory->round;
	memcpy(local->gid, gid.raw, 16);
	if (!ibv_query_gid(context, apm.port[1], apm.index[1], &gid))
		memcpy(local->other_gid, gid.raw, 16);
}

static void connect_qp(const struct remote *local, const struct remote *remote)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = remote->qpn,
		.rq_psn = remote->psn,
		.max_dest_rd_atomic = DEPTH,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1,
			     .port_num = apm.port[0],
			     .grh = { .sgid_index = apm.index[0], .hop_limit = 64 } },
	};
	memcpy(rtr.ah_attr.grh.dgid.raw, remote->gid, 16);
	struct ibv_port_attr port;
	if (ibv_query_port(qp->context, 1, &port))
		fail("cannot query the port");
	rtr.path_mtu = port.active_mtu;
	if (ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("cannot move the queue pair to RTR");
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = local->psn,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = DEPTH,
	};
	if (ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC))
		fail("cannot move the queue pair to RTS");
	if (apm_start(qp, remote->gid, remote->other_gid))
		fail("cannot load an alternate path");
}

static void transfer(int fd, const struct remote *local, struct remote *remote)
{
	if (write(fd, local, sizeof *local) != (ssize_t)sizeof *local)
		fail("cannot tell the peer");
	for (size_t have = 0; have < sizeof *remote;) {
		ssize_t count = read(fd, (char *)remote + have, sizeof *remote - have);
		if (count <= 0)
			fail("the peer said nothing");
		have += (size_t)count;
	}
}

static void ready(int fd)
{
	char byte = 1;
	if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
		fail("the peer went away");
}

static void serve(const char *port)
{
	struct remote local = { 0 }, remote;
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port)) };
	int listener = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 1))
		fail("cannot listen on port %s", port);
	int fd = accept(listener, NULL, NULL);
	if (fd < 0)
		fail("nobody came");
	open_device(&local);
	for (int slot = 0; slot < RECEIVES; slot++)
		post_receive(slot);
	transfer(fd, &local, &remote);
	connect_qp(&local, &remote);
	ready(fd);
	uint64_t round = 0;
	for (uint64_t expected = 0;; expected++) {
		struct ibv_wc wc = completion();
		struct message *message = &memory->receives[wc.wr_id];
		if (wc.byte_len != sizeof *message)
			fail("message %llu has %u bytes", (unsigned long long)expected, wc.byte_len);
		if (message->number != expected)
			fail("message %llu came where %llu was due", (unsigned long long)message->number,
			     (unsigned long long)expected);
		check(message->data, message->number, "message");
		if (message->kind == LAST)
			break;
		uint64_t latest = __atomic_load_n(&memory->round, __ATOMIC_ACQUIRE);
		if (latest < expected || latest < round)
			fail("round %llu was written before message %llu, after %llu",
			     (unsigned long long)latest, (unsigned long long)expected, (unsigned long long)round);
		round = latest;
		post_receive((int)wc.wr_id);
	}
	struct message *last = NULL;
	for (int slot = 0; slot < RECEIVES && !last; slot++)
		last = memory->receives[slot].kind == LAST ? &memory->receives[slot] : NULL;
	if (memory->counter != last->number)
		fail("the counter is %llu after %llu additions", (unsigned long long)memory->counter,
		     (unsigned long long)last->number);
	printf("exact: rounds=%llu counter=%llu\n", (unsigned long long)last->number,
	       (unsigned long long)memory->counter);
	fflush(stdout);
	/* The answer to the last message may be lost, and the client asks for it again. It closes the connection when
	 * it has it; this may not come through, because tests cut links. */
	struct pollfd gone = { .fd = fd, .events = POLLIN };
	poll(&gone, 1, LINGER_MS);
}

static void post_round(const struct remote *remote, uint64_t round)
{
	int slot = (int)(round % DEPTH);
	uint64_t area = remote->area + (uint64_t)slot * MESSAGE;
	struct ibv_send_wr add = { .wr_id = round, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
	add.wr.atomic.remote_addr = remote->counter;
	add.wr.atomic.compare_add = 1;
	add.wr.atomic.rkey = remote->rkey;
	post(&add, &memory->fetched[slot], 8);

	memory->rounds[slot] = round;
	struct ibv_send_wr number = { .wr_id = round, .opcode = IBV_WR_ATOMIC_WRITE };
	number.wr.rdma.remote_addr = remote->round;
	number.wr.rdma.rkey = remote->rkey;
	post(&number, &memory->rounds[slot], 8);

	struct message *message = &memory->sends[slot];
	message->number = round;
	message->kind = 0;
	fill(message->data, round);
	struct ibv_send_wr send = { .wr_id = round, .opcode = IBV_WR_SEND };
	post(&send, message, sizeof *message);

	fill(memory->written[slot], ~round);
	struct ibv_send_wr write = { .wr_id = round, .opcode = IBV_WR_RDMA_WRITE };
	write.wr.rdma.remote_addr = area;
	write.wr.rdma.rkey = remote->rkey;
	post(&write, memory->written[slot], MESSAGE);

	memset(memory->readback[slot], 0, MESSAGE);
	struct ibv_send_wr read = { .wr_id = round, .opcode = IBV_WR_RDMA_READ };
	read.wr.rdma.remote_addr = area;
	read.wr.rdma.rkey = remote->rkey;
	post(&read, memory->readback[slot], MESSAGE);
}

/* Takes the completions of a round, which must come in the order posted. */
static void finish_round(uint64_t round)
{
	static const enum ibv_wc_opcode order[] = { IBV_WC_FETCH_ADD, IBV_WC_ATOMIC_WRITE, IBV_WC_SEND,
						    IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ };
	for (int i = 0; i < 5; i++) {
		struct ibv_wc wc = completion();
		if (wc.wr_id != round || wc.opcode != order[i])
			fail("completion %d of round %llu: got opcode %d of round %llu", i,
			     (unsigned long long)round, wc.opcode, (unsigned long long)wc.wr_id);
	}
	int slot = (int)(round % DEPTH);
	if (memory->fetched[slot] != round)
		fail("addition %llu found the counter at %llu", (unsigned long long)round,
		     (unsigned long long)memory->fetched[slot]);
	check(memory->readback[slot], ~round, "what was read back in round");
}

static void interrupt(int signal)
{
	(void)signal;
	interrupted = 1;
}

static void act(const char *host, const char *port, double seconds)
{
	struct remote local = { 0 }, remote;
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	if (getaddrinfo(host, port, &hints, &address))
		fail("cannot resolve %s", host);
	int fd = socket(address->ai_family, SOCK_STREAM, 0);
	if (connect(fd, address->ai_addr, address->ai_addrlen))
		fail("cannot connect to %s", host);
	open_device(&local);
	transfer(fd, &local, &remote);
	connect_qp(&local, &remote);
	ready(fd);
	signal(SIGINT, interrupt);
	printf("exact: connected\n");
	fflush(stdout);

	uint64_t posted = 0, finished = 0;
	double end = now() + seconds;
	bool more = true;
	while (more || finished < posted) {
		more = more && !interrupted && now() < end;
		if (more && posted - finished < DEPTH)
			post_round(&remote, posted++);
		else
			finish_round(finished++);
	}
	struct message *last = &memory->sends[0];
	last->number = posted;
	last->kind = LAST;
	fill(last->data, posted);
	struct ibv_send_wr send = { .wr_id = posted, .opcode = IBV_WR_SEND };
	post(&send, last, sizeof *last);
	completion();
	printf("exact: rounds=%llu counter=%llu\n", (unsigned long long)posted, (unsigned long long)posted);
}

int main(int count, char **arguments)
{
	if (count >= 3 && !strcmp(arguments[1], "-s") && !apm_arguments(arguments + 3))
		serve(arguments[2]);
	else if (count >= 5 && !strcmp(arguments[1], "-c") && !apm_arguments(arguments + 5))
		act(arguments[2], arguments[3], atof(arguments[4]));
	else
		fail("usage: exact -s PORT [OWN OTHER [EVERY]] | exact -c HOST PORT SECONDS [OWN OTHER [EVERY]]");
	apm_end();
	return 0;
}
