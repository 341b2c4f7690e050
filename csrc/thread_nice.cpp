#include "thread_nice.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace flashboot {

void be_nice(int nice) {
  // On Linux these are per thread.
  const auto thread = static_cast<id_t>(gettid());
  errno = 0;
  const int now = getpriority(PRIO_PROCESS, thread);
  if ((now == -1 && errno != 0) || (now < nice && setpriority(PRIO_PROCESS, thread, nice) != 0)) {
    throw std::system_error(errno, std::generic_category(), "setting the thread's nice value");
  }
}

}  // namespace flashboot
