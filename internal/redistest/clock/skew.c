/* This library is preloaded into redis-server. It shifts the time of day by the number of microseconds in the file that
   SKEW_FILE names. The file is mapped into memory, so writing to it makes the clock step at once. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *skew;

__attribute__((constructor)) static void map_skew(void) {
	const char *name = getenv("SKEW_FILE");
	int fd = name ? open(name, O_RDONLY) : -1;
	if (fd < 0) abort();
	skew = mmap(NULL, sizeof *skew, PROT_READ, MAP_SHARED, fd, 0);
	if (skew == MAP_FAILED) abort();
	close(fd);
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	int err = syscall(SYS_clock_gettime, id, ts);
	if (err == 0 && skew && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
		int64_t ns = (ts->tv_sec * 1000000LL + *skew) * 1000 + ts->tv_nsec;
		ts->tv_sec = ns / 1000000000;
		ts->tv_nsec = ns % 1000000000;
	}
	return err;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
	struct timespec ts;
	(void)tz;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t) *t = ts.tv_sec;
	return ts.tv_sec;
}
