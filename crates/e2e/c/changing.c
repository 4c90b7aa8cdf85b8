/* A program that changes a buffer all the time while it is being sent: some mixture arrives, and nothing
 * fails. */
#include "objects.h"
#include <pthread.h>

enum { LENGTH = 4096, DEPTH = 64, WRITES = 100000 };

static uint8_t source[LENGTH], target[LENGTH];

static void *change(void *stop)
{
	for (uint8_t n = 0; !__atomic_load_n((bool *)stop, __ATOMIC_RELAXED); n++)
		for (size_t at = 0; at < LENGTH; at++)
			__atomic_store_n(&source[at], n, __ATOMIC_RELAXED);
	return NULL;
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *here = ibv_create_qp(pd, &init), *there = ibv_create_qp(pd, &init);
	struct ibv_mr *from = ibv_reg_mr(pd, source, LENGTH, EVERYTHING);
	struct ibv_mr *to = ibv_reg_mr(pd, target, LENGTH, EVERYTHING);
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = LENGTH, .lkey = from->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	bool stop = false;
	pthread_t thread;

	wr.wr.rdma.remote_addr = (uintptr_t)target;
	wr.wr.rdma.rkey = to->rkey;
	connect_to(here, there->qp_num);
	connect_to(there, here->qp_num);
	EQ(pthread_create(&thread, NULL, change, &stop), 0);
	for (int posted = 0, done = 0; done < WRITES;) {
		struct ibv_wc wc[DEPTH];
		int n;

		for (; posted < WRITES && posted - done < DEPTH; posted++)
			EQ(ibv_post_send(here, &wr, &bad), 0);
		n = ibv_poll_cq(cq, DEPTH, wc);
		for (int i = 0; i < n; i++)
			EQ(wc[i].status, IBV_WC_SUCCESS);
		EQ(n >= 0, 1);
		done += n;
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	EQ(pthread_join(thread, NULL), 0);
	printf("%d checks passed\n", checks);
	return 0;
}
