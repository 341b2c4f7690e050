#include "bindings.hpp"

namespace flashboot {

void bind_clone(nanobind::module_&) {}

}  // namespace flashboot
