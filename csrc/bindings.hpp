// What module.cpp calls; each file bind_*.cpp gives Python one part. They convert and check; the work is in the core.
#pragma once

#include <nanobind/nanobind.h>

namespace flashboot {

void bind_digest(nanobind::module_& module);
void bind_stream(nanobind::module_& module);
void bind_marks(nanobind::module_& module);
void bind_clone(nanobind::module_& module);
void bind_load(nanobind::module_& module);
void bind_checkpoint(nanobind::module_& module);
void bind_delta(nanobind::module_& module);
void bind_layout(nanobind::module_& module);
void bind_torch(nanobind::module_& module);

}  // namespace flashboot
