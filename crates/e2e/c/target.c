/* A queue pair that others send to. Prints its number and its keys, then each message that it gets.
 *
 *   target ud
 *   target uc ADDRESS NUMBER    connected to that queue pair, which need not exist
 */
#include <arpa/inet.h>
#include "objects.h"

enum { GRH = 40, QKEY = 0x11223344, RECEIVES = 2048, ROOM = 4096, GUARDED = 4096 };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *memory;

static void receive(uint64_t at)
{
	struct ibv_sge sge = { (uintptr_t)memory + at * ROOM, ROOM, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1 }, *bad;

	EQ(ibv_post_recv(qp, &wr, &bad), 0);
}

static void open_to_all(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

static void open_to_one(const char *address, uint32_t number)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					    IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = number;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_index = GID_INDEX;
	attr.ah_attr.grh.hop_limit = 64;
	memset(attr.ah_attr.grh.dgid.raw + 10, 0xff, 2);
	EQ(inet_pton(AF_INET, address, attr.ah_attr.grh.dgid.raw + 12), 1);
	EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					    IBV_QP_RQ_PSN), 0);
}

int main(int argc, char **argv)
{
	bool ud = argc > 1 && !strcmp(argv[1], "ud");
	struct ibv_context *context = open_first();
	struct ibv_qp_init_attr init = {
		.qp_type = ud ? IBV_QPT_UD : IBV_QPT_UC,
		.cap = { .max_send_wr = 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_mr *guarded;
	uint8_t *untouched;
	uint64_t i;

	MADE(pd = ibv_alloc_pd(context));
	MADE(cq = ibv_create_cq(context, RECEIVES + 1, NULL, NULL, 0));
	MADE(memory = calloc(RECEIVES, ROOM));
	MADE(mr = ibv_reg_mr(pd, memory, (size_t)RECEIVES * ROOM, IBV_ACCESS_LOCAL_WRITE));
	MADE(untouched = calloc(1, GUARDED));
	MADE(guarded = ibv_reg_mr(pd, untouched, GUARDED, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	init.send_cq = init.recv_cq = cq;
	MADE(qp = ibv_create_qp(pd, &init));
	if (ud)
		open_to_all();
	else
		open_to_one(argv[2], (uint32_t)strtoul(argv[3], NULL, 0));
	for (i = 0; i < RECEIVES; i++)
		receive(i);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("queue pair %u, Q_Key %u, rkey %u, address %llu\n", qp->qp_num, QKEY, guarded->rkey,
	       (unsigned long long)(uintptr_t)untouched);
	for (;;) {
		struct ibv_wc wc = completion(cq);
		uint8_t *message = memory + wc.wr_id * ROOM;
		uint32_t skip = ud ? GRH : 0;

		EQ(wc.status, IBV_WC_SUCCESS);
		/* The contents of the guarded memory are printed with the next message. */
		printf("message of %u bytes: %.8s memory: %.8s\n", wc.byte_len - skip,
		       (char *)message + skip, (char *)untouched);
		memset(message, 0, ROOM);
		receive(wc.wr_id);
	}
}
