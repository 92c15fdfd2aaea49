// Storage for activations, away from their device (memory/activation_offload.h).
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <string>

#include "bindings/registration.h"
#include "longspan/base/user_error.h"
#include "longspan/memory/activation_offload.h"

namespace longspan {
namespace {

struct OffloadStore : torch::CustomClassHolder {
  OffloadStore(at::Device device, const std::string& folder) : store(device, folder) {}
  ActivationOffload store;
};

struct OffloadedTensor : torch::CustomClassHolder {
  std::shared_ptr<SavedTensors> saved;
};

using StorePointer = c10::intrusive_ptr<OffloadStore>;
using TensorPointer = c10::intrusive_ptr<OffloadedTensor>;

StorePointer offload_store(at::Device device, const std::string& folder) {
  return for_python([&] { return c10::make_intrusive<OffloadStore>(device, folder); });
}

TensorPointer offload(const StorePointer& store, const at::Tensor& x) {
  return for_python([&] {
    auto offloaded = c10::make_intrusive<OffloadedTensor>();
    offloaded->saved = store->store.put({x.detach()});
    return offloaded;
  });
}

/// Returns the tensor. The copy of the tensor that was stored before it may start.
at::Tensor fetch_offloaded(const TensorPointer& offloaded) {
  return for_python([&] {
    at::Tensor x = offloaded->saved->get(0);
    offloaded->saved->read_previous_ahead();
    return x;
  });
}

int64_t offload_file_bytes(const StorePointer& store) { return store->store.peak_file_bytes(); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.class_<OffloadStore>("OffloadStore");
  library.class_<OffloadedTensor>("OffloadedTensor");
  library.def(
      "offload_store(Device device, str folder) -> __torch__.torch.classes.longspan.OffloadStore",
      offload_store);
  library.def(
      "offload(__torch__.torch.classes.longspan.OffloadStore store, Tensor x) -> "
      "__torch__.torch.classes.longspan.OffloadedTensor",
      offload);
  library.def(
      "fetch_offloaded(__torch__.torch.classes.longspan.OffloadedTensor offloaded) -> Tensor",
      fetch_offloaded);
  library.def("offload_file_bytes(__torch__.torch.classes.longspan.OffloadStore store) -> int",
              offload_file_bytes);
}

}  // namespace longspan
