/* Two processes play ping-pong, and threads wait for the messages in every way that there is.
 *
 *     waiting MESSAGES
 *
 * Each process has two queue pairs, each with a completion channel of its own, and a third that is idle. Prints
 * a line "waiting: WAYS: half round trip=NANOSECONDS" for each way, the median of the first queue pair. */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { PAIRS = 3, IDLE = 2, DEPTH = 16 };

enum way { BLOCKS, BY_POLL, SPINS };

static struct ibv_comp_channel *channels[PAIRS];
static struct ibv_cq *queues[PAIRS];
static struct ibv_qp *pairs[PAIRS];
static uint64_t *memory;
static struct ibv_mr *region;
static int peer; /* a socket to the other process */
static int first; /* whether this process sends first */
static long messages;
static long *taken;

struct play {
	int number;
	enum way way;
};

static void receive(int n)
{
	struct ibv_sge sge = { (uintptr_t)&memory[n], 8, region->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(pairs[n], &wr, &bad))
		fail("cannot post a receive");
}

static void make(void)
{
	uint32_t numbers[PAIRS], theirs[PAIRS];
	open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	memory = some(1, PAGE);
	region = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	for (int n = 0; n < PAIRS; n++) {
		channels[n] = ibv_create_comp_channel(context);
		queues[n] = channels[n] ? ibv_create_cq(context, 4 * DEPTH, &channels[n], channels[n], 0) : NULL;
		pairs[n] = queues[n] ? make_qp(pd, queues[n], IBV_QPT_RC, DEPTH) : NULL;
		if (!region || !pairs[n])
			fail("cannot make objects");
		initialise(pairs[n]);
		for (int i = 0; i < DEPTH; i++)
			receive(n);
		numbers[n] = pairs[n]->qp_num;
	}
	if (write(peer, numbers, sizeof numbers) != sizeof numbers || read(peer, theirs, sizeof theirs) != sizeof theirs)
		fail("the other process has gone");
	/* Both are on one host. */
	for (int n = 0; n < PAIRS; n++)
		connect_to(pairs[n], theirs[n], &gid, 7);
}

/* Waits until the other process is as far. */
static void meet(void)
{
	char byte = 0;
	if (write(peer, &byte, 1) != 1 || read(peer, &byte, 1) != 1)
		fail("the other process has gone");
}

static void say(int n)
{
	struct ibv_sge sge = { (uintptr_t)&memory[64], 8, region->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	if (ibv_post_send(pairs[n], &wr, &bad))
		fail("cannot post a send");
}

/* Takes an event, after which there may be completions. */
static void await(int n, enum way way)
{
	struct ibv_cq *queue;
	void *of;
	if (way == BY_POLL) {
		struct pollfd entry = { .fd = channels[n]->fd, .events = POLLIN };
		if (poll(&entry, 1, -1) != 1)
			fail("poll");
	}
	if (ibv_get_cq_event(channels[n], &queue, &of))
		fail("no event");
	if (queue != queues[n] || of != &channels[n])
		fail("an event of another queue");
	ibv_ack_cq_events(queue, 1);
}

/* Returns when a message has come; completions of sends are taken on the way. */
static void hear(int n, enum way way)
{
	for (;;) {
		struct ibv_wc wc;
		int count = ibv_poll_cq(queues[n], 1, &wc);
		if (!count && way != SPINS) {
			if (ibv_req_notify_cq(queues[n], 0))
				fail("cannot arm");
			count = ibv_poll_cq(queues[n], 1, &wc);
			if (!count) {
				await(n, way);
				continue;
			}
		}
		if (count < 0 || (count && wc.status))
			fail("%s", count < 0 ? "cannot poll" : ibv_wc_status_str(wc.status));
		if (count && wc.opcode == IBV_WC_RECV) {
			receive(n);
			return;
		}
	}
}

static void *play(void *argument)
{
	const struct play *play = argument;
	for (long i = 0; i < messages; i++) {
		double begun = now();
		if (first)
			say(play->number);
		hear(play->number, play->way);
		if (!first)
			say(play->number);
		if (!play->number)
			taken[i] = (long)((now() - begun) * 0.5e9);
	}
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;
	return (x > y) - (x < y);
}

/* Two threads play, or only the first. */
static void both(const char *name, enum way one, enum way other, int threads)
{
	struct play plays[] = { { 0, one }, { 1, other } };
	pthread_t ids[2];
	meet();
	for (int i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, play, &plays[i]))
			fail("no thread");
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	qsort(taken, (size_t)messages, sizeof *taken, by_value);
	char text[64];
	snprintf(text, sizeof text, "%s: half round trip", name);
	if (first)
		report(text, taken[messages / 2]);
}

static void *wait_for_ever(void *argument)
{
	(void)argument;
	struct ibv_cq *queue;
	void *of;
	if (ibv_req_notify_cq(queues[IDLE], 0))
		fail("cannot arm");
	long result = ibv_get_cq_event(channels[IDLE], &queue, &of);
	return (void *)(result ? (long)errno : 0L);
}

static void nothing(int signal)
{
	(void)signal;
}

/* A thread that waits for an event is cancelled, or gets a signal until it returns. */
static void disturb(int cancels)
{
	pthread_t id;
	void *result;
	meet();
	if (pthread_create(&id, NULL, wait_for_ever, NULL))
		fail("no thread");
	if (cancels) {
		pthread_cancel(id);
		pthread_join(id, &result);
		if (result != PTHREAD_CANCELED)
			fail("a thread was not cancelled, but ended with %ld", (long)result);
		return;
	}
	struct sigaction action = { .sa_handler = nothing };
	sigaction(SIGUSR1, &action, NULL);
	while (pthread_tryjoin_np(id, &result)) {
		pthread_kill(id, SIGUSR1);
		sched_yield();
	}
	if ((long)result != EINTR)
		fail("a signal ended the wait with %ld, not EINTR", (long)result);
	signal(SIGUSR1, SIG_IGN);
}

int main(int count, char **words)
{
	int sockets[2];
	if (count != 2 || (messages = atol(words[1])) < 1)
		fail("usage: waiting MESSAGES");
	taken = some((size_t)messages, sizeof *taken);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		fail("no sockets");
	pid_t child = fork();
	first = child > 0;
	peer = sockets[!first];
	close(sockets[first]);
	make();
	both("one blocks", BLOCKS, BLOCKS, 1);
	both("two block", BLOCKS, BLOCKS, 2);
	disturb(1);
	both("one blocks, after another was cancelled", BLOCKS, BLOCKS, 1);
	both("one blocks, one polls the channel", BLOCKS, BY_POLL, 2);
	both("one blocks, one spins", BLOCKS, SPINS, 2);
	both("one polls the channel", BY_POLL, BLOCKS, 1);
	disturb(0);
	both("one blocks, after another had a signal", BLOCKS, BLOCKS, 1);
	meet();
	int status = 0;
	if (first && (waitpid(child, &status, 0) != child || status))
		fail("the other process failed");
	return 0;
}
