/* Migrates as the APM example of the "RDMA Aware Networks Programming User Manual" does, by the same calls in
 * the same order: it looks for another active port of its device, exchanges local identifiers in the private
 * data of the connection manager, copies the address vector in use to the alternate one, changes the port,
 * and arms.
 * After some messages the client migrates.
 *
 *   classic -s ADDRESS [-m MESSAGES]
 *   classic -c ADDRESS [-m MESSAGES] */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct rdma_cm_id *id;
static struct ibv_mr *mr;
static char buffer[2][64];
static char received; /* the first byte of the latest message */
static uint8_t alt_port;   /* another active port of this end; 0: none */
static uint16_t own_dlid;  /* its local identifier */
static uint16_t peer_dlid; /* that of the peer's other port */

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static const char *name(enum ibv_mig_state state)
{
	return state == IBV_MIG_MIGRATED ? "MIGRATED" : state == IBV_MIG_REARM ? "REARM" : "ARMED";
}

static void *events(void *unused)
{
	struct ibv_async_event event;
	(void)unused;
	while (!ibv_get_async_event(id->verbs, &event)) {
		printf("event: %s\n", ibv_event_type_str(event.event_type));
		fflush(stdout);
		ibv_ack_async_event(&event);
	}
	return NULL;
}

static enum ibv_mig_state state(struct ibv_qp_attr *attr)
{
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(id->qp, attr, IBV_QP_PATH_MIG_STATE | IBV_QP_AV | IBV_QP_PORT, &init))
		exit(fail("ibv_query_qp"));
	return attr->path_mig_state;
}

/* Looks for a port besides the one in use. */
static int find_port(void)
{
	struct ibv_device_attr device;
	if (ibv_query_device(id->verbs, &device))
		return fail("ibv_query_device");
	if (!(device.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG)) {
		fprintf(stderr, "the device does not migrate\n");
		return 1;
	}
	for (uint8_t port = 1; port <= device.phys_port_cnt; port++) {
		struct ibv_port_attr attr;
		if (port == id->port_num)
			continue;
		if (ibv_query_port(id->verbs, port, &attr))
			return fail("ibv_query_port");
		if (attr.state == IBV_PORT_ACTIVE) {
			alt_port = port;
			own_dlid = attr.lid;
			break;
		}
	}
	printf("alternate port: %d\n", alt_port);
	return 0;
}

static int load_alt_path(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(id->qp, &attr, 0, &init))
		return fail("ibv_query_qp");
	memcpy(&attr.alt_ah_attr, &attr.ah_attr, sizeof attr.ah_attr);
	attr.alt_pkey_index = attr.pkey_index;
	attr.alt_timeout = attr.timeout;
	attr.path_mig_state = IBV_MIG_REARM;
	attr.alt_port_num = alt_port ? alt_port : attr.port_num;
	if (peer_dlid)
		attr.alt_ah_attr.dlid = peer_dlid;
	if (ibv_modify_qp(id->qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE))
		return fail("ibv_modify_qp");
	return 0;
}

static int receive(void)
{
	if (rdma_post_recv(id, NULL, buffer[0], sizeof buffer[0], mr))
		return fail("rdma_post_recv");
	return 0;
}

/* Waits for a message, and sends one; the client does so the other way round. */
static int exchange(int is_client)
{
	struct ibv_wc wc;
	for (int step = 0; step < 2; step++) {
		if (step == is_client) {
			if (rdma_get_recv_comp(id, &wc) != 1 || wc.status)
				return fail("receiving");
			received = buffer[0][0];
			if (receive())
				return 1;
		} else if (rdma_post_send(id, NULL, buffer[1], sizeof buffer[1], mr, 0) ||
			   rdma_get_send_comp(id, &wc) != 1 || wc.status) {
			return fail("sending");
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	int is_client = 0, messages = 100, option;
	const char *address = NULL;
	pthread_t thread;
	while ((option = getopt(argc, argv, "s:c:m:")) != -1) {
		if (option == 'm')
			messages = atoi(optarg);
		else
			address = optarg, is_client = option == 'c';
	}
	struct rdma_addrinfo hints = {
		.ai_port_space = RDMA_PS_TCP, .ai_flags = is_client ? 0 : RAI_PASSIVE,
	}, *info;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *listener = NULL;
	if (rdma_getaddrinfo(address, "7471", &hints, &info))
		return fail("rdma_getaddrinfo");
	if (is_client) {
		if (rdma_create_ep(&id, info, NULL, &init))
			return fail("rdma_create_ep");
	} else {
		if (rdma_create_ep(&listener, info, NULL, &init) || rdma_listen(listener, 1))
			return fail("rdma_listen");
		if (rdma_get_request(listener, &id))
			return fail("rdma_get_request");
		if (id->event->param.conn.private_data_len >= sizeof peer_dlid)
			memcpy(&peer_dlid, id->event->param.conn.private_data, sizeof peer_dlid);
	}
	mr = rdma_reg_msgs(id, buffer, sizeof buffer);
	if (!mr)
		return fail("rdma_reg_msgs");
	if (find_port() || receive() || pthread_create(&thread, NULL, events, NULL))
		return 1;
	struct rdma_conn_param parameters = {
		.private_data = &own_dlid,
		.private_data_len = sizeof own_dlid,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	if (is_client ? rdma_connect(id, &parameters) : rdma_accept(id, &parameters))
		return fail("connecting");
	if (is_client && id->event && id->event->param.conn.private_data_len >= sizeof peer_dlid)
		memcpy(&peer_dlid, id->event->param.conn.private_data, sizeof peer_dlid);
	if (load_alt_path())
		return 1;
	printf("connected\n");
	fflush(stdout);
	struct ibv_qp_attr attr;
	/* Unlike the example, it waits until the other end is ready, too. */
	for (int n = 0;; n++) {
		memset(buffer[1], 0, sizeof buffer[1]);
		if (is_client && n >= messages && state(&attr) == IBV_MIG_ARMED)
			buffer[1][0] = 'e';
		if (exchange(is_client))
			return 1;
		if ((is_client ? buffer[1][0] : received) == 'e')
			break;
	}
	if (is_client) {
		attr.path_mig_state = IBV_MIG_MIGRATED;
		if (ibv_modify_qp(id->qp, &attr, IBV_QP_PATH_MIG_STATE))
			return fail("migrating");
	}
	for (int n = 0; n < messages; n++)
		if (exchange(is_client))
			return 1;
	enum ibv_mig_state last = state(&attr);
	printf("state: %s, port %d\n", name(last), attr.port_num);
	fflush(stdout);
	if (is_client)
		rdma_disconnect(id);
	printf("done\n");
	return 0;
}
