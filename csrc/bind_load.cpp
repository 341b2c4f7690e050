#include "bindings.hpp"

namespace flashboot {

void bind_load(nanobind::module_&) {}

}  // namespace flashboot
