// The limit of a clone on one node: memcpy from one memfd into another with several threads.
//
// copy_limit THREADS KIND BYTES: the source's pages are resident and mapped; the target's are present (the holder made
// them), and mapped within the time.
#define _GNU_SOURCE
#include "limit.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PIECE = 4 << 20 };

static size_t bytes;
static char *source, *target;
static atomic_size_t next_piece;

static void* work(void* unused) {
  (void)unused;
  for (size_t at; (at = atomic_fetch_add(&next_piece, PIECE)) < bytes;)
    memcpy(target + at, source + at, bytes - at < PIECE ? bytes - at : PIECE);
  return NULL;
}

int main(int count, char** words) {
  if (count != 4) return 2;
  int threads = atoi(words[1]);
  bytes = strtoull(words[3], NULL, 0);
  Memory from = memory_create(words[2], bytes);
  memory_reserve(&from);
  memory_map(&from);
  memory_pattern(from.at, bytes);
  source = from.at;
  ready();
  while (next_command()) {
    Memory to = memory_create(words[2], bytes);
    memory_reserve(&to);
    double c0 = cpu(), t0 = now();
    memory_map(&to);
    target = to.at;
    atomic_store(&next_piece, 0);
    pthread_t others[MAX_THREADS];
    for (int i = 1; i < threads; i++) pthread_create(&others[i], NULL, work, NULL);
    work(NULL);
    for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
    double t1 = now(), c1 = cpu();
    if (memcmp(source, target, bytes)) fail("the copy differs");
    memory_free(&to);
    answer(t1 - t0, c1 - c0);
  }
  return 0;
}
