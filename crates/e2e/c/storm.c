/* Many connections of the connection manager, made, refused and given up in every way.
 *
 *   storm accept PORT       a server that accepts, and forgets a connection when it ends
 *   storm reject PORT       a server that refuses every connection
 *   storm deaf PORT         a server that listens and never reads an event
 *   storm connect HOST PORT COUNT AT_A_TIME
 *                           makes COUNT connections and ends each at once
 *   storm abort HOST PORT COUNT AT_A_TIME
 *                           destroys each id as soon as its request is sent
 *
 * A server prints "storm: listening"; a client what became of its connections:
 *
 *     storm: established=N refused=N unanswered=N aborted=N ms=N
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RESOLVE_MS = 5000 };

static struct rdma_event_channel *channel;
static struct sockaddr_storage server;
static long established, refused, unanswered, aborted;

static void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs("storm: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct rdma_conn_param parameters(void)
{
	/* There is no queue pair, only a number. A number is used by one connection at a time. */
	static uint32_t number;
	number = (number + 1) % 0xfff000;
	return (struct rdma_conn_param){ .qp_num = 16 + number, .retry_count = 7, .rnr_retry_count = 7 };
}

static void serve(const char *port, int how)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port)) };
	struct rdma_cm_id *listener, *id;
	struct rdma_cm_event *event;
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (struct sockaddr *)&any) ||
	    rdma_listen(listener, 0))
		fail("cannot listen on port %s", port);
	puts("storm: listening");
	fflush(stdout);
	while (how == 'd')
		pause();
	while (!rdma_get_cm_event(channel, &event)) {
		struct rdma_conn_param answer = parameters();
		int kind = event->event;
		id = event->id;
		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
			/* The peer may have gone meanwhile. */
			if (how == 'a' && rdma_accept(id, &answer))
				rdma_destroy_id(id);
			if (how == 'r') {
				rdma_reject(id, NULL, 0);
				rdma_destroy_id(id);
			}
		} else if (kind != RDMA_CM_EVENT_ESTABLISHED && id != listener) {
			rdma_destroy_id(id);
		}
	}
	fail("the event channel broke");
}

static void begin(void)
{
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("cannot make an id");
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&server, RESOLVE_MS))
		fail("cannot resolve");
}

/* Handles one event. Returns whether a connection has ended. */
static int step(int abort)
{
	struct rdma_cm_event *event;
	struct rdma_conn_param ask = parameters();
	if (rdma_get_cm_event(channel, &event))
		fail("the event channel broke");
	struct rdma_cm_id *id = event->id;
	int kind = event->event, status = event->status;
	rdma_ack_cm_event(event);
	switch (kind) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(id, RESOLVE_MS))
			fail("cannot resolve the route");
		return 0;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if (rdma_connect(id, &ask))
			fail("cannot connect");
		if (!abort)
			return 0;
		aborted++;
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		/* Without a queue pair of the library, the program has to answer. */
		if (rdma_establish(id))
			fail("cannot establish");
		established++;
		rdma_disconnect(id);
		break;
	case RDMA_CM_EVENT_REJECTED:
		refused++;
		break;
	case RDMA_CM_EVENT_UNREACHABLE:
		unanswered++;
		break;
	default:
		fail("%s, status %d", rdma_event_str(kind), status);
	}
	if (rdma_destroy_id(id))
		fail("cannot destroy an id");
	return 1;
}

static void act(const char *host, const char *port, long count, long most, int abort)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	if (getaddrinfo(host, port, &hints, &address))
		fail("cannot resolve %s", host);
	memcpy(&server, address->ai_addr, address->ai_addrlen);
	double start = now();
	long begun = 0, ended = 0;
	while (ended < count) {
		for (; begun < count && begun - ended < most; begun++)
			begin();
		ended += step(abort);
	}
	printf("storm: established=%ld refused=%ld unanswered=%ld aborted=%ld ms=%ld\n", established, refused,
	       unanswered, aborted, (long)((now() - start) * 1000));
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";
	channel = rdma_create_event_channel();
	if (!channel)
		fail("no event channel");
	if (count == 3 && (!strcmp(mode, "accept") || !strcmp(mode, "reject") || !strcmp(mode, "deaf")))
		serve(arguments[2], mode[0]);
	else if (count == 6 && (!strcmp(mode, "connect") || !strcmp(mode, "abort")))
		act(arguments[2], arguments[3], atol(arguments[4]), atol(arguments[5]), mode[0] == 'a');
	else
		fail("usage: storm accept|reject|deaf PORT | connect|abort HOST PORT COUNT AT_A_TIME");
	return 0;
}
