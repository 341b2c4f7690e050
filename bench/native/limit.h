// What the limits share: memfds as the holder makes them, and the line protocol of bench/kit/worker.py.
//
// Holds always: memory of a kind is made with the same calls, in the same order, as agent/flashboot_agent/memory does,
// so that a limit differs from what it is the limit of in the loop alone.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { MAX_THREADS = 64, HUGE_PAGE = 2 << 20, STEP = 64 << 20 };

_Noreturn static inline void fail(const char* what) {
  printf("{\"error\": \"%s: %s\"}\n", what, strerror(errno));
  exit(1);
}

static inline double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline double cpu(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

typedef struct {
  int fd;
  size_t size;  // rounded up to huge pages
  char* at;
  bool transparent;
} Memory;

// kind: hugetlb, transparent or small.
static inline Memory memory_create(const char* kind, size_t bytes) {
  bool hugetlb = !strcmp(kind, "hugetlb");
  Memory m = {.size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, .transparent = !strcmp(kind, "transparent")};
  if (!hugetlb) m.size = (bytes + 4095) / 4096 * 4096;
  m.fd = memfd_create("limit", MFD_CLOEXEC | (hugetlb ? MFD_HUGETLB : 0));
  if (m.fd < 0) fail("memfd_create");
  if (ftruncate(m.fd, (off_t)m.size)) fail("ftruncate");
  return m;
}

// Makes all pages present, as the holder does.
static inline void memory_reserve(Memory* m) {
  for (size_t o = 0; o < m->size; o += STEP) {
    size_t n = m->size - o < STEP ? m->size - o : STEP;
    if (m->transparent) {
      char* p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, (off_t)o);
      if (p == MAP_FAILED) fail("mmap");
      madvise(p, n, MADV_HUGEPAGE);
      if (madvise(p, n, MADV_POPULATE_WRITE)) fail("MADV_POPULATE_WRITE");
      munmap(p, n);
    } else if (fallocate(m->fd, 0, (off_t)o, (off_t)n)) {
      fail("fallocate");
    }
  }
}

static inline void memory_map(Memory* m) {
  m->at = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
  if (m->at == MAP_FAILED) fail("mmap");
  if (m->transparent) madvise(m->at, m->size, MADV_HUGEPAGE);
}

static inline void memory_free(Memory* m) {
  if (m->at) munmap(m->at, m->size);
  close(m->fd);
  m->at = NULL;
}

// The bytes that both ends of a copy agree on.
static inline void memory_pattern(char* at, size_t bytes) {
  uint64_t x = 0x9E3779B97F4A7C15u;
  for (size_t o = 0; o + 8 <= bytes; o += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    memcpy(at + o, &x, 8);
  }
}

static inline void ready(void) {
  printf("{\"ready\": true}\n");
  fflush(stdout);
}

// Waits for the next command; false at the end of stdin. Any line is "run".
static inline bool next_command(void) {
  static char line[4096];
  return fgets(line, sizeof line, stdin) != NULL;
}

static inline void answer(double seconds, double cpu_seconds) {
  printf("{\"seconds\": %.6f, \"cpu\": %.6f}\n", seconds, cpu_seconds);
  fflush(stdout);
}
