// The limit of FlashLoad: preadv of whole files into a memfd, 8 MiB pieces handed to threads in order.
//
// load_limit THREADS KIND fresh|fault|resident FILE...
// fresh: the memory is made and its pages present within the time, as the holder does. fault: it is made within the
// time, pages come as the reads touch them. resident: memory of earlier runs is filled again.
#define _GNU_SOURCE
#include "limit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

enum { PIECE = 8 << 20, MAX_FILES = 256 };

static int fds[MAX_FILES];
static size_t starts[MAX_FILES + 1];  // where each file begins in memory, on whole pages
static size_t sizes[MAX_FILES];
static int files;
static char* target;
static atomic_size_t next_piece;

static void* work(void* unused) {
  (void)unused;
  for (size_t at; (at = atomic_fetch_add(&next_piece, PIECE)) < starts[files];) {
    size_t end = at + PIECE < starts[files] ? at + PIECE : starts[files];
    while (at < end) {
      int i = 0;
      while (at >= starts[i + 1]) i++;
      size_t inside = at - starts[i];
      if (inside >= sizes[i]) {  // the gap up to the next file
        at = starts[i + 1];
        continue;
      }
      size_t n = sizes[i] - inside < end - at ? sizes[i] - inside : end - at;
      struct iovec piece = {target + at, n};
      ssize_t got = preadv(fds[i], &piece, 1, (off_t)inside);
      if (got <= 0) fail("preadv");
      at += (size_t)got;
    }
  }
  return NULL;
}

int main(int count, char** words) {
  if (count < 5) return 2;
  int threads = atoi(words[1]);
  bool resident = !strcmp(words[3], "resident"), reserve = strcmp(words[3], "fault") != 0;
  for (int i = 4; i < count; i++, files++) {
    struct stat s;
    fds[files] = open(words[i], O_RDONLY | O_CLOEXEC);
    if (fds[files] < 0 || fstat(fds[files], &s)) fail(words[i]);
    sizes[files] = (size_t)s.st_size;
    starts[files + 1] = starts[files] + (sizes[files] + 4095) / 4096 * 4096;
  }
  Memory m = {.at = NULL};
  ready();
  while (next_command()) {
    double c0 = cpu(), t0 = now();
    if (!m.at) {
      m = memory_create(words[2], starts[files]);
      if (reserve) memory_reserve(&m);
      memory_map(&m);
    }
    target = m.at;
    atomic_store(&next_piece, 0);
    pthread_t others[MAX_THREADS];
    for (int i = 1; i < threads; i++) pthread_create(&others[i], NULL, work, NULL);
    work(NULL);
    for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
    double t1 = now(), c1 = cpu();
    if (!resident) memory_free(&m);
    answer(t1 - t0, c1 - c0);
  }
  return 0;
}
