/* Asks for automatic path migration in each of the ways there are, and compares errno with a table. Then
 * connects, waits for the events of the connection manager, and for the queue pair to be ARMED.
 *
 *   options -s ADDRESS
 *   options -c ADDRESS HOW [OWN2 PEER2]
 *
 * HOW is id (one byte at level RDMA_OPTION_ID), ib (an int at level RDMA_OPTION_IB), function
 * (rdma_enable_apm) or path (RDMA_OPTION_IB_PATH with an alternate path between two addresses, which follow). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPTION_IB_APM = 2, ALT_ROUTE_RESOLVED = 0x415010, LOAD_ALT_PATH = 0x415012 };

static struct rdma_event_channel *channel;
static struct ibv_cq *cq;

static void fail(const char *what)
{
	fprintf(stderr, "options: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int enable(struct rdma_cm_id *id, int type)
{
	int (*function)(struct rdma_cm_id *, int) = dlsym(RTLD_DEFAULT, "rdma_enable_apm");
	if (!function)
		fail("rdma_enable_apm");
	return function(id, type);
}

static void expect(int result, int expected, const char *what)
{
	if ((result ? errno : 0) != expected) {
		fprintf(stderr, "options: %s: %d (errno %d) instead of %d\n", what, result, errno, expected);
		exit(1);
	}
}

/* Each way on a fresh id, right and wrong. */
static void table(void)
{
	static const struct {
		int space, level, option, length, expected;
		const char *what;
	} rows[] = {
		{ RDMA_PS_TCP, RDMA_OPTION_ID, OPTION_IB_APM, 1, 0, "one byte at level ID" },
		{ RDMA_PS_TCP, RDMA_OPTION_IB, OPTION_IB_APM, 1, 0, "one byte at level IB" },
		{ RDMA_PS_TCP, RDMA_OPTION_IB, OPTION_IB_APM, 4, 0, "an int at level IB" },
		{ RDMA_PS_TCP, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 4, 0, "AFONLY" },
		{ RDMA_PS_TCP, RDMA_OPTION_IB, OPTION_IB_APM, 2, EINVAL, "two bytes" },
		{ RDMA_PS_TCP, RDMA_OPTION_IB, OPTION_IB_APM, 8, EINVAL, "eight bytes" },
		{ RDMA_PS_UDP, RDMA_OPTION_ID, OPTION_IB_APM, 1, EINVAL, "UD at level ID" },
		{ RDMA_PS_UDP, RDMA_OPTION_IB, OPTION_IB_APM, 4, EINVAL, "UD at level IB" },
		{ RDMA_PS_TCP, RDMA_OPTION_IB, 3, 4, ENOSYS, "another option" },
		{ RDMA_PS_TCP, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, 8, EINVAL, "a path that is none" },
	};
	uint8_t value[8] = { 1 };
	for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
		struct rdma_cm_id *id;
		if (rdma_create_id(channel, &id, NULL, rows[n].space))
			fail("rdma_create_id");
		int result = rdma_set_option(id, rows[n].level, rows[n].option, value, (size_t)rows[n].length);
		expect(result, rows[n].expected, rows[n].what);
		expect(enable(id, 3), rows[n].space == RDMA_PS_UDP ? EINVAL : 0, "rdma_enable_apm");
		expect(enable(id, 0), rows[n].space == RDMA_PS_UDP ? EINVAL : 0, "rdma_enable_apm, off");
		rdma_destroy_id(id);
	}
}

static struct rdma_cm_event *await(int type)
{
	struct rdma_cm_event *event;
	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event");
	printf("options: event %#x, status %d\n", event->event, event->status);
	fflush(stdout);
	if ((int)event->event != type) {
		fprintf(stderr, "options: event %#x instead of %#x\n", event->event, type);
		exit(1);
	}
	return event;
}

static struct ibv_qp *make_qp(struct rdma_cm_id *id)
{
	cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	if (!cq || rdma_create_qp(id, NULL, &init))
		fail("rdma_create_qp");
	return id->qp;
}

static void record(struct ibv_path_data *path, const char *from, const char *to, uint32_t flags)
{
	memset(path, 0, sizeof *path);
	path->flags = flags | IBV_PATH_FLAG_BIDIRECTIONAL;
	path->path.sgid.raw[10] = path->path.sgid.raw[11] = path->path.dgid.raw[10] = path->path.dgid.raw[11] = 0xff;
	if (inet_pton(AF_INET, from, &path->path.sgid.raw[12]) != 1 ||
	    inet_pton(AF_INET, to, &path->path.dgid.raw[12]) != 1)
		fail("inet_pton");
	path->path.flowlabel_hoplimit = htonl(64);
	path->path.reversible_numpath = IBV_PATH_RECORD_REVERSIBLE | 1;
	path->path.pkey = 0xffff;
	path->path.mtu = 2 << 6 | IBV_MTU_1024;
	path->path.rate = 2 << 6 | IBV_RATE_10_GBPS;
	path->path.packetlifetime = 2 << 6 | 14;
}

static void serve(struct sockaddr_in *address)
{
	struct rdma_cm_id *listener;
	struct rdma_conn_param parameters = { .responder_resources = 1, .retry_count = 7 };
	int value = 1;
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_set_option(listener, RDMA_OPTION_IB, OPTION_IB_APM, &value, sizeof value) ||
	    rdma_bind_addr(listener, (struct sockaddr *)address) || rdma_listen(listener, 1))
		fail("listening");
	struct rdma_cm_event *request = await(RDMA_CM_EVENT_CONNECT_REQUEST), *event;
	make_qp(request->id);
	if (rdma_accept(request->id, &parameters))
		fail("rdma_accept");
	rdma_ack_cm_event(request);
	do {
		if (rdma_get_cm_event(channel, &event))
			fail("rdma_get_cm_event");
		printf("options: event %#x, status %d\n", event->event, event->status);
		fflush(stdout);
		value = event->event != RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(event);
	} while (value);
}

static void connect_to(struct sockaddr_in *address, char **how)
{
	struct rdma_cm_id *id;
	struct rdma_conn_param parameters = { .initiator_depth = 1, .retry_count = 7 };
	uint8_t byte = 1;
	int value = 1;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (!strcmp(*how, "id"))
		expect(rdma_set_option(id, RDMA_OPTION_ID, OPTION_IB_APM, &byte, 1), 0, *how);
	else if (!strcmp(*how, "ib"))
		expect(rdma_set_option(id, RDMA_OPTION_IB, OPTION_IB_APM, &value, sizeof value), 0, *how);
	else if (!strcmp(*how, "function"))
		expect(enable(id, 3), 0, *how);
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 5000))
		fail("rdma_resolve_addr");
	rdma_ack_cm_event(await(RDMA_CM_EVENT_ADDR_RESOLVED));
	if (!strcmp(*how, "path")) {
		struct ibv_path_data paths[2];
		char own[INET_ADDRSTRLEN], peer[INET_ADDRSTRLEN];
		inet_ntop(AF_INET, &((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr, own, sizeof own);
		inet_ntop(AF_INET, &address->sin_addr, peer, sizeof peer);
		record(&paths[0], own, peer, IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY);
		record(&paths[1], own, peer, IBV_PATH_FLAG_ALTERNATE);
		expect(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, sizeof paths), EINVAL,
		       "the alternate path is the primary one");
		record(&paths[1], how[1], how[2], IBV_PATH_FLAG_ALTERNATE);
		expect(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, sizeof paths), 0, *how);
	} else if (rdma_resolve_route(id, 5000)) {
		fail("rdma_resolve_route");
	}
	rdma_ack_cm_event(await(RDMA_CM_EVENT_ROUTE_RESOLVED));
	make_qp(id);
	if (rdma_connect(id, &parameters))
		fail("rdma_connect");
	rdma_ack_cm_event(await(RDMA_CM_EVENT_ESTABLISHED));
	if (strcmp(*how, "path"))
		rdma_ack_cm_event(await(ALT_ROUTE_RESOLVED));
	/* A path that REQ and REP have agreed on is loaded without having been asked for. */
	rdma_ack_cm_event(await(LOAD_ALT_PATH));
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	do {
		if (ibv_query_qp(id->qp, &attr, IBV_QP_PATH_MIG_STATE | IBV_QP_ALT_PATH, &init))
			fail("ibv_query_qp");
		usleep(1000);
	} while (attr.path_mig_state != IBV_MIG_ARMED);
	printf("options: armed, alternate port %d\n", attr.alt_port_num);
	if (rdma_disconnect(id))
		fail("rdma_disconnect");
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7172) };
	channel = rdma_create_event_channel();
	if (argc < 3 || !channel || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
		return 2;
	if (!strcmp(argv[1], "-s")) {
		serve(&address);
	} else {
		table();
		connect_to(&address, argv + 3);
	}
	printf("options: done\n");
	return 0;
}
