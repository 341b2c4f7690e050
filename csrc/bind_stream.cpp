#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bindings.hpp"
#include "errors.hpp"
#include "python_buffer.hpp"
#include "stream.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

std::string_view text(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

void make_context(TlsContext* self, const nb::bytes& certificate, const nb::bytes& key, const nb::bytes& ca,
                  bool server) {
  new (self) TlsContext(text(certificate), text(key), text(ca), server);
}

void start_tls(Stream& self, std::shared_ptr<TlsContext> context, const std::optional<std::string>& expected_uri,
               double patience) {
  const nb::gil_scoped_release unlocked;
  self.start_tls(std::move(context), expected_uri, seconds(patience));
}

std::size_t recv_into(Stream& self, nb::handle buffer, double silence, double whole, const std::string& what) {
  const PinnedBuffer into(buffer, PyBUF_WRITABLE);
  const nb::gil_scoped_release unlocked;
  return self.recv_into(into.writable(), seconds(silence), seconds(whole), what);
}

void send(Stream& self, nb::handle head, nb::handle tail, double silence, double whole, const std::string& what) {
  const PinnedBuffer first(head);
  const PinnedBuffer second(tail);
  const nb::gil_scoped_release unlocked;
  self.send(first.bytes(), second.bytes(), seconds(silence), seconds(whole), what);
}

}  // namespace

void bind_stream(nb::module_& module) {
  nb::exception<StreamBroken>(module, "StreamBroken");
  nb::exception<StreamTimeout>(module, "StreamTimeout");
  nb::exception<StreamTorn>(module, "StreamTorn");
  nb::exception<TlsRefused>(module, "TlsRefused");

  nb::class_<TlsContext>(module, "TlsContext")
      .def("__init__", &make_context, nb::arg("certificate"), nb::arg("key"), nb::arg("ca"), nb::kw_only(),
           nb::arg("server"));

  const nb::call_guard<nb::gil_scoped_release> unlocked;
  nb::class_<Stream>(module, "Stream")
      .def(nb::init<int, std::string>(), nb::arg("fd"), nb::arg("label"))
      .def_prop_rw("label", &Stream::label, &Stream::set_label)
      .def("start_tls", &start_tls, nb::arg("context"), nb::arg("expected_uri").none(), nb::arg("seconds"))
      .def_prop_ro("peer_uris", &Stream::peer_uris)
      .def_prop_ro("tls", &Stream::tls)
      .def_prop_ro("closed", &Stream::closed)
      .def("recv_into", &recv_into, nb::arg("buffer"), nb::arg("silence"), nb::arg("whole"), nb::arg("what"))
      .def("send", &send, nb::arg("head"), nb::arg("tail"), nb::arg("silence"), nb::arg("whole"), nb::arg("what"))
      .def("peer_is_gone", &Stream::peer_is_gone, unlocked)
      .def(
          "finish", [](Stream& self, double patience) { self.finish(seconds(patience)); }, nb::arg("patience"),
          unlocked)
      .def("close", &Stream::close, unlocked);
}

}  // namespace flashboot
