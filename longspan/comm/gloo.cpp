#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <sstream>

#include "longspan/comm/backend.h"

namespace longspan {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                    int size, int64_t timeout_seconds,
                                                    const std::string& host,
                                                    const std::string& interfaces) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(timeout_seconds));
  if (!interfaces.empty()) {
    std::istringstream names(interfaces);
    for (std::string name; std::getline(names, name, ',');) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
  }
  // Two threads for each device, as in torch: one collective may wait for a peer while the next one
  // moves data.
  options->threads = 2 * static_cast<int>(options->devices.size());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace longspan
