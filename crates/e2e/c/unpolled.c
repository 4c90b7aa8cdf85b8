/* Two processes play ping-pong by RDMA WRITE, and nobody polls a completion queue.
 *
 *     unpolled MESSAGES [one]
 *
 * Each process spins on the place that the other writes to. Requests are unsignaled but for one in
 * SIGNALED, whose completion is taken once it is long there. With `one`, a single process writes to
 * itself and leaves a processor idle. Prints "unpolled: half round trip NANOSECONDS", the median of
 * what the messages took. */
#include "common.h"

#include <sys/socket.h>
#include <sys/wait.h>

enum { SIGNALED = 256, DEPTH = 1024 };

struct remote {
	union ibv_gid gid;
	uint64_t address;
	uint32_t qpn, rkey;
};

static volatile uint64_t *memory; /* [0]: what came; [8]: what goes */
static struct ibv_mr *region;
static struct ibv_cq *queue;
static struct ibv_qp *pair;

static void make(struct remote *own)
{
	open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	memory = some(1, PAGE);
	region = ibv_reg_mr(pd, (void *)memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	queue = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8 },
	};
	pair = ibv_create_qp(pd, &init);
	if (!region || !queue || !pair)
		fail("cannot make objects");
	initialise(pair);
	*own = (struct remote){ .gid = gid, .address = (uintptr_t)memory, .qpn = pair->qp_num, .rkey = region->rkey };
}

static void put(uint64_t value, const struct remote *to)
{
	memory[8] = value;
	struct ibv_sge sge = { (uintptr_t)&memory[8], 8, region->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_INLINE | (value % SIGNALED ? 0 : IBV_SEND_SIGNALED),
		.wr.rdma = { .remote_addr = to->address, .rkey = to->rkey },
	}, *bad;
	struct ibv_wc wc;
	if (value % SIGNALED == SIGNALED / 2 && value > SIGNALED && (ibv_poll_cq(queue, 1, &wc) != 1 || wc.status))
		fail("message %lu: no completion, or a bad one", value);
	if (ibv_post_send(pair, &wr, &bad))
		fail("cannot post");
}

static void await(uint64_t value)
{
	double limit = now() + 20;
	for (uint64_t turns = 1; memory[0] < value; turns++)
		if (turns % 1048576 == 0 && now() > limit)
			fail("message %lu did not come", value);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	long messages = argc > 1 ? atol(argv[1]) : 10000;
	int alone = argc > 2, both[2];
	struct remote own, other;
	double *took = some((size_t)messages + 1, sizeof *took);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, both))
		fail("no socket pair");
	int child = alone ? 0 : fork();
	int client = alone || child;
	make(&own);
	if (alone) {
		other = own;
	} else if (write(both[client], &own, sizeof own) != sizeof own || read(both[client], &other, sizeof other) != sizeof other) {
		fail("the other process is gone");
	}
	connect_to(pair, other.qpn, &other.gid, 7);
	char byte = 0;
	if (!alone && (write(both[client], &byte, 1) != 1 || read(both[client], &byte, 1) != 1))
		fail("the other process is gone");
	for (long i = 1; i <= messages; i++) {
		double start = now();
		if (client)
			put((uint64_t)i, &other);
		await((uint64_t)i);
		if (!client)
			put((uint64_t)i, &other);
		took[i] = now() - start;
	}
	if (!client) {
		/* The queue pair must exist until the last message is acknowledged, which the client reports. */
		return read(both[client], &byte, 1) == 1 ? 0 : 1;
	}
	qsort(took + 1, (size_t)messages, sizeof *took, ascending);
	printf("unpolled: half round trip %.0f\n", took[1 + messages / 2] * (alone ? 1e9 : 5e8));
	int status = 0;
	if (!alone && (write(both[client], &byte, 1) != 1 || waitpid(child, &status, 0) != child || status))
		fail("the other process failed");
	return 0;
}
