// Threads that move bytes leave the CPU to the engine beside them.
#pragma once

namespace flashboot {

// Raises the calling thread's nice value to `nice`, if it is lower. Without privileges it can't be lowered again: such a
// thread is a data thread for good. Throws std::system_error.
void be_nice(int nice);

}  // namespace flashboot
