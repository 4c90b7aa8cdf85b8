/*
 * Creates queues and queue pairs on chosen processors, and says where the queue pairs are at home.
 *
 *   homes STEP...   cN: a completion queue, made by processor N, for the queue pairs that follow
 *                   sN: a shared receive queue, likewise; s-: none
 *                   pN: a queue pair, made by processor N
 *                   dN: destroys the Nth queue pair
 * It then waits until it is killed.
 */
#include "common.h"
#include <dlfcn.h>
#include <sched.h>

static void move_to(int processor)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	if (sched_setaffinity(0, sizeof set, &set) || sched_getcpu() != processor)
		fail("cannot run on processor %d", processor);
}

int main(int count, char **steps)
{
	int (*query)(struct ibv_qp *, uint8_t *, uint8_t *) = dlsym(RTLD_DEFAULT, "polypath_query_qp_lag_port");
	if (!query)
		fail("no polypath_query_qp_lag_port");
	open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = NULL;
	struct ibv_srq *srq = NULL;
	struct ibv_qp *pairs[64];
	int made = 0;
	for (int at = 1; at < count && made < 64; at++) {
		const char *step = steps[at];
		int number = atoi(step + 1);
		if (*step != 'd' && step[1] != '-')
			move_to(number);
		if (*step == 'd') {
			if (ibv_destroy_qp(pairs[number]))
				fail("cannot destroy queue pair %d", number);
		} else if (*step == 'c') {
			cq = ibv_create_cq(context, 16, NULL, NULL, 0);
			if (!cq)
				fail("no completion queue");
		} else if (*step == 's') {
			struct ibv_srq_init_attr of = { .attr = { .max_wr = 16, .max_sge = 1 } };
			srq = step[1] == '-' ? NULL : ibv_create_srq(pd, &of);
			if (!srq && step[1] != '-')
				fail("no shared receive queue");
		} else {
			struct ibv_qp_init_attr init = {
				.send_cq = cq,
				.recv_cq = cq,
				.srq = srq,
				.cap = { .max_send_wr = 4, .max_recv_wr = srq ? 0 : 4, .max_send_sge = 1, .max_recv_sge = 1 },
				.qp_type = IBV_QPT_RC,
			};
			uint8_t home = 255, active = 255;
			pairs[made] = ibv_create_qp(pd, &init);
			if (!pairs[made] || query(pairs[made], &home, &active))
				fail("no queue pair, or no home");
			printf("%d: home %d, range %d\n", made, home, pairs[made]->qp_num >> 16);
			made++;
		}
	}
	printf("done\n");
	fflush(stdout);
	for (;;)
		pause();
}
