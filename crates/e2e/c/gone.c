/* The program unmaps memory while it is registered, and closes devices while objects are left. The process
 * must survive, and peers must get the status of an access that is not allowed. */
#define _GNU_SOURCE
#include "objects.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 8, LENGTH = PAGES * PAGE };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *here, *there;
static struct ibv_mr *good, *victim;
static uint8_t *kept, *given;
static int file = -1;
static sigjmp_buf back;
static volatile sig_atomic_t own_faults;

static void on_fault(int signal)
{
	(void)signal;
	own_faults++;
	siglongjmp(back, 1);
}

static struct ibv_qp *queue_pair(struct ibv_pd *domain, struct ibv_cq *queue)
{
	struct ibv_qp_init_attr init = {
		.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(domain, &init);

	MADE(qp);
	return qp;
}

static void connect_both(void)
{
	struct ibv_wc wc;

	reset(here);
	reset(there);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	connect_to(here, there->qp_num);
	connect_to(there, here->qp_num);
}

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_mr *local, void *at, uint32_t length,
		struct ibv_mr *remote, void *remote_at)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = length, .lkey = local->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote_at;
		wr.wr.atomic.rkey = remote->rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (remote) {
		wr.wr.rdma.remote_addr = (uintptr_t)remote_at;
		wr.wr.rdma.rkey = remote->rkey;
	}
	return ibv_post_send(qp, &wr, &bad);
}

static enum ibv_wc_status ended(struct ibv_cq *queue, uint32_t qp_num)
{
	struct ibv_wc wc;

	do
		wc = completion(queue);
	while (wc.qp_num != qp_num);
	return wc.status;
}

/* Posts one request that reads from or writes to the unmapped memory. */
static void expect(enum ibv_wr_opcode opcode, bool ours, uint32_t length, enum ibv_wc_status wanted)
{
	uint8_t *at = given + PAGE;

	connect_both();
	if (ours)
		EQ(post(here, opcode, victim, at, length, good, kept), 0);
	else
		EQ(post(here, opcode, good, kept, length, victim, at), 0);
	EQ(ended(cq, here->qp_num), wanted);
}

/* A SEND whose receive is in unmapped memory. */
static void expect_receive(uint32_t length, enum ibv_wc_status sent, enum ibv_wc_status received)
{
	struct ibv_sge sge = { .addr = (uintptr_t)(given + PAGE), .length = length, .lkey = victim->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;
	int left = 2;

	connect_both();
	EQ(ibv_post_recv(there, &wr, &bad), 0);
	EQ(post(here, IBV_WR_SEND, good, kept, length, NULL, NULL), 0);
	while (left--) {
		wc = completion(cq);
		EQ(wc.status, wc.qp_num == here->qp_num ? sent : received);
	}
}

static void expect_all(bool there_is_memory)
{
	static const uint32_t lengths[] = { 1, 8, 512, 1024, PAGE, 3 * PAGE };
	enum ibv_wc_status remote = there_is_memory ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
	enum ibv_wc_status local = there_is_memory ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
	enum ibv_wc_status send = there_is_memory ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR;

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		expect(IBV_WR_RDMA_WRITE, false, lengths[i], remote);
		expect(IBV_WR_RDMA_READ, false, lengths[i], remote);
		expect(IBV_WR_RDMA_WRITE, true, lengths[i], local);
		expect(IBV_WR_RDMA_READ, true, lengths[i], local);
		expect_receive(lengths[i], send, local);
	}
	expect(IBV_WR_ATOMIC_FETCH_AND_ADD, false, 8, remote);
	expect(IBV_WR_ATOMIC_FETCH_AND_ADD, true, 8, local);
}

/* An address range in which the kernel maps nothing by itself, so that unmapped memory stays unmapped. */
static uint8_t *map(void)
{
	static uintptr_t place = 0x200000000000;
	int flags = (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_FIXED_NOREPLACE;
	uint8_t *at = mmap((void *)(place += 1 << 30), LENGTH, PROT_READ | PROT_WRITE, flags, file, 0);

	EQ(at != MAP_FAILED, 1);
	return at;
}

static void begin(int access)
{
	given = map();
	memset(given, 1, LENGTH);
	MADE(victim = ibv_reg_mr(pd, given, LENGTH, access));
	expect(IBV_WR_RDMA_WRITE, false, 3 * PAGE, IBV_WC_SUCCESS);
}

static void end(void)
{
	EQ(ibv_dereg_mr(victim), 0);
	munmap(given, LENGTH);
}

static void ways_to_give_memory_up(int access)
{
	begin(access);
	EQ(munmap(given + PAGE, 3 * PAGE), 0);
	expect_all(false);
	end();

	begin(access);
	EQ(mprotect(given + PAGE, 3 * PAGE, PROT_NONE), 0);
	expect_all(false);
	end();

	begin(access);
	EQ(mremap(given + PAGE, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, map()) != MAP_FAILED, 1);
	expect_all(false);
	end();

	/* The memory is still mapped, and contains zeros. */
	begin(access);
	EQ(madvise(given, LENGTH, MADV_DONTNEED), 0);
	expect_all(true);
	end();

	file = memfd_create("gone", 0);
	EQ(ftruncate(file, LENGTH), 0);
	begin(access);
	EQ(ftruncate(file, PAGE), 0);
	expect_all(false);
	/* Everything works again once the file is as long as before. */
	EQ(ftruncate(file, LENGTH), 0);
	expect_all(true);
	end();
	close(file);
	file = -1;
}

static void *remap_all_the_time(void *stop)
{
	while (!__atomic_load_n((bool *)stop, __ATOMIC_RELAXED)) {
		munmap(given, LENGTH);
		EQ(mmap(given, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
			   given, 1);
	}
	return NULL;
}

/* The memory can thus be unmapped between any check and any access. */
static void memory_that_comes_and_goes(int access)
{
	pthread_t thread;
	bool stop = false;

	begin(access);
	EQ(pthread_create(&thread, NULL, remap_all_the_time, &stop), 0);
	for (int i = 0; i < 300; i++) {
		enum ibv_wc_status status;

		connect_both();
		EQ(post(here, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, good, kept, LENGTH, victim, given), 0);
		status = ended(cq, here->qp_num);
		EQ(status == IBV_WC_SUCCESS || status == IBV_WC_REM_ACCESS_ERR, 1);
		connect_both();
		EQ(post(here, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, victim, given, LENGTH, good, kept), 0);
		status = ended(cq, here->qp_num);
		EQ(status == IBV_WC_SUCCESS || status == IBV_WC_LOC_PROT_ERR, 1);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	EQ(pthread_join(thread, NULL), 0);
	end();
}

/* The program sees the signal handlers that it has set, and gets its own faults. */
static void the_programs_own_handler(void)
{
	struct sigaction action = { .sa_handler = on_fault }, old;
	volatile int *volatile nowhere = (int *)16;

	EQ(sigaction(SIGSEGV, &action, &old), 0);
	EQ(old.sa_handler == SIG_DFL, 1);
	EQ(signal(SIGBUS, on_fault) == SIG_DFL, 1);
	begin(EVERYTHING);
	EQ(munmap(given + PAGE, 3 * PAGE), 0);
	expect_all(false);
	end();
	EQ(own_faults, 0);
	for (int i = 0; i < 3; i++)
		if (!sigsetjmp(back, 1))
			*nowhere = 1;
	EQ(own_faults, 3);
	EQ(sigaction(SIGSEGV, NULL, &old), 0);
	EQ(old.sa_handler == on_fault, 1);
	EQ(signal(SIGSEGV, SIG_DFL) == on_fault, 1);
	EQ(signal(SIGBUS, SIG_DFL) == on_fault, 1);
}

static void all_signals_blocked(void)
{
	sigset_t all, old, now;

	sigfillset(&all);
	EQ(pthread_sigmask(SIG_SETMASK, &all, &old), 0);
	begin(EVERYTHING);
	EQ(munmap(given + PAGE, 3 * PAGE), 0);
	expect_all(false);
	end();
	EQ(pthread_sigmask(SIG_SETMASK, &old, &now), 0);
	EQ(sigismember(&now, SIGUSR1), 1);
}

/* A program that closes the device and frees its memory, and destroys the remaining objects much later. */
static void closed_with_objects_left(void)
{
	struct ibv_context *theirs = open_first();
	struct ibv_pd *domain = ibv_alloc_pd(theirs), *foreign;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(theirs);
	struct ibv_cq *queue;
	struct ibv_qp *left;
	struct ibv_mr *region;

	MADE(domain);
	MADE(channel);
	REFUSED(ibv_create_cq(context, 1, NULL, channel, 0), EINVAL);
	MADE(queue = ibv_create_cq(theirs, 16, NULL, channel, 0));
	given = map();
	memset(given, 1, LENGTH);
	MADE(region = ibv_reg_mr(domain, given, LENGTH, EVERYTHING));
	left = queue_pair(domain, queue);
	reset(here);
	connect_to(here, left->qp_num);
	connect_to(left, here->qp_num);
	EQ(post(here, IBV_WR_RDMA_WRITE, good, kept, PAGE, region, given), 0);
	EQ(ended(cq, here->qp_num), IBV_WC_SUCCESS);
	EQ(given[PAGE - 1], kept[PAGE - 1]);

	EQ(ibv_close_device(theirs), 0);
	memset(given, 2, LENGTH);
	EQ(post(here, IBV_WR_RDMA_WRITE, good, kept, PAGE, region, given), 0);
	EQ(ended(cq, here->qp_num), IBV_WC_RETRY_EXC_ERR);
	EQ(given[0], 2);
	EQ(given[PAGE - 1], 2);

	REFUSED(ibv_reg_mr(domain, given, LENGTH, EVERYTHING), EBADF);
	EQ(ibv_destroy_qp(left), 0);
	EQ(ibv_dereg_mr(region), 0);
	EQ(ibv_destroy_cq(queue), 0);
	EQ(ibv_destroy_comp_channel(channel), 0);
	EQ(ibv_dealloc_pd(domain), 0);
	munmap(given, LENGTH);

	/* As long as the device is open elsewhere in the process, nothing changes. */
	theirs = open_first();
	MADE(domain = ibv_alloc_pd(theirs));
	MADE(queue = ibv_create_cq(theirs, 16, NULL, NULL, 0));
	given = map();
	MADE(region = ibv_reg_mr(domain, given, LENGTH, EVERYTHING));
	left = queue_pair(domain, queue);
	struct ibv_context *again = ibv_import_device(dup(theirs->cmd_fd));
	MADE(again);
	MADE(foreign = ibv_import_pd(again, domain->handle));
	EQ(ibv_close_device(theirs), 0);
	reset(here);
	connect_to(here, left->qp_num);
	connect_to(left, here->qp_num);
	EQ(post(here, IBV_WR_RDMA_WRITE, good, kept, PAGE, region, given), 0);
	EQ(ended(cq, here->qp_num), IBV_WC_SUCCESS);
	ibv_unimport_pd(foreign);
	EQ(ibv_close_device(again), 0);
	EQ(ibv_destroy_qp(left), 0);
	EQ(ibv_dereg_mr(region), 0);
	EQ(ibv_destroy_cq(queue), 0);
	EQ(ibv_dealloc_pd(domain), 0);
	munmap(given, LENGTH);
}

int main(void)
{
	context = open_first();
	MADE(pd = ibv_alloc_pd(context));
	MADE(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	here = queue_pair(pd, cq);
	there = queue_pair(pd, cq);
	kept = map();
	memset(kept, 7, LENGTH);
	MADE(good = ibv_reg_mr(pd, kept, LENGTH, EVERYTHING));

	ways_to_give_memory_up(EVERYTHING);
	ways_to_give_memory_up(EVERYTHING | IBV_ACCESS_ON_DEMAND);
	memory_that_comes_and_goes(EVERYTHING);
	memory_that_comes_and_goes(EVERYTHING | IBV_ACCESS_ON_DEMAND);
	the_programs_own_handler();
	all_signals_blocked();
	closed_with_objects_left();
	printf("%d checks passed\n", checks);
	return 0;
}
