/* A call that succeeds leaves errno alone, and librdmacm, which destroys what it has made when it fails, tells
 * why it failed. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include "objects.h"

/* The errno after an expression that is 0. */
#define LEAVES(expression)                                                                                          \
	do {                                                                                                        \
		errno = ENOENT;                                                                                     \
		EQ(expression, 0);                                                                                  \
		EQ(errno, ENOENT);                                                                                  \
	} while (0)

static void verbs(void)
{
	struct ibv_context *context = open_first();
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_wc wc;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	MADE(pd = ibv_alloc_pd(context));
	MADE(cq = ibv_create_cq(context, 4, NULL, NULL, 0));
	init.send_cq = init.recv_cq = cq;
	MADE(qp = ibv_create_qp(pd, &init));
	LEAVES(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	LEAVES(ibv_poll_cq(cq, 1, &wc));
	LEAVES(ibv_req_notify_cq(cq, 0));
	attr.qp_state = IBV_QPS_ERR;
	LEAVES(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RESET;
	LEAVES(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	LEAVES(ibv_destroy_qp(qp));
	LEAVES(ibv_destroy_cq(cq));
	LEAVES(ibv_dealloc_pd(pd));
	LEAVES(ibv_close_device(context));
}

static void cm(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("10.0.0.1") };
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;

	MADE(channel = rdma_create_event_channel());
	LEAVES(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
	LEAVES(rdma_bind_addr(id, (struct sockaddr *)&address));
	errno = 0;
	EQ(rdma_create_qp(id, NULL, &init), -1);
	EQ(errno, EINVAL);
	LEAVES(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	verbs();
	cm();
	printf("errno: %d checks passed\n", checks);
	return 0;
}
