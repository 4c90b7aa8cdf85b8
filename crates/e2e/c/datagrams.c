/* Datagrams to more destinations than a lane keeps paths for, and datagrams longer than the MTU. */
#include "objects.h"

enum { GRH = 40, QKEY = 0x1111, LENGTH = 8192 };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *memory;

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp *made;

	MADE(made = ibv_create_qp(pd, &init));
	EQ(ibv_modify_qp(made, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	EQ(ibv_modify_qp(made, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	EQ(ibv_modify_qp(made, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	return made;
}

/* The same host with another traffic class or hop limit is another destination. */
static struct ibv_ah *destination(int number)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1,
		.grh = { .sgid_index = GID_INDEX, .hop_limit = (uint8_t)(1 + number % 250),
			 .traffic_class = (uint8_t)(number / 250 * 4 % 256),
			 .flow_label = (uint32_t)(number / 250 / 64) },
	};
	struct ibv_ah *ah;

	EQ(ibv_query_gid(qp->context, 1, GID_INDEX, &attr.grh.dgid), 0);
	MADE(ah = ibv_create_ah(pd, &attr));
	return ah;
}

static void receive(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	EQ(ibv_post_recv(qp, &wr, &bad), 0);
}

static void send(struct ibv_ah *ah, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + LENGTH, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad;

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	EQ(ibv_post_send(qp, &wr, &bad), 0);
}

/* The receive buffer begins with the IP header of the packet (IBTA A17.4.3): its length is that of the UDP
 * header, BTH, DETH, payload and ICRC after it. */
static void check_header(int payload)
{
	const uint8_t *ip = memory + 20;
	int length = 8 + 12 + 8 + payload + 4;
	uint32_t sum = 0;
	int i;

	EQ(ip[0], 0x45);
	EQ(ip[2] << 8 | ip[3], 20 + length);
	EQ(ip[9], 17);
	for (i = 0; i < 20; i += 2)
		sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
	EQ((sum & 0xffff) + (sum >> 16), 0xffff);
}

/* Sends one datagram to this process, which must arrive. */
static void travel(struct ibv_ah *ah)
{
	int sent = 0, received = 0;

	receive();
	send(ah, 8);
	while (!sent || !received) {
		struct ibv_wc wc = completion(cq);

		EQ(wc.status, IBV_WC_SUCCESS);
		if (wc.wr_id == 1) {
			EQ(wc.byte_len, GRH + 8);
			check_header(8);
		}
		received += wc.wr_id == 1;
		sent += wc.wr_id == 2;
	}
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_port_attr port;
	struct ibv_ah *first;
	struct ibv_wc wc;
	int i;

	EQ(ibv_query_port(context, 1, &port), 0);
	MADE(pd = ibv_alloc_pd(context));
	MADE(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	MADE(memory = calloc(2, LENGTH));
	MADE(mr = ibv_reg_mr(pd, memory, 2 * LENGTH, EVERYTHING));
	qp = queue_pair();

	first = destination(0);
	travel(first);
	for (i = 1; i < 20000; i++) {
		struct ibv_ah *ah = destination(i);

		travel(ah);
		EQ(ibv_destroy_ah(ah), 0);
	}
	/* The lane forgot the path of this destination long ago. */
	travel(first);

	/* C10-93.1.1: a message longer than the port's MTU is not sent, and causes no error. */
	receive();
	send(first, (128U << port.active_mtu) + 1);
	wc = completion(cq);
	EQ(wc.wr_id, 2);
	EQ(wc.status, IBV_WC_SUCCESS);
	send(first, 128U << port.active_mtu);
	for (i = 0; i < 2; i++) {
		wc = completion(cq);
		EQ(wc.status, IBV_WC_SUCCESS);
		if (wc.wr_id == 1)
			EQ(wc.byte_len, GRH + (128U << port.active_mtu));
	}

	EQ(ibv_destroy_ah(first), 0);
	EQ(ibv_destroy_qp(qp), 0);
	EQ(ibv_dereg_mr(mr), 0);
	EQ(ibv_destroy_cq(cq), 0);
	EQ(ibv_dealloc_pd(pd), 0);
	EQ(ibv_close_device(context), 0);
	printf("datagrams: %d checks passed\n", checks);
	return 0;
}
