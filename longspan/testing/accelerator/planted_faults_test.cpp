// Deliberate faults: each is found by its name, and the correct version passes.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/in_child.h"
#include "longspan/testing/accelerator/planted.h"
#include "longspan/testing/accelerator/streams_for_tests.h"
#include "longspan/testing/accelerator/tensors.h"

namespace longspan::testing::accelerator {
namespace {

constexpr int64_t kSize = 1024;

at::Tensor pinned(int64_t size = kSize) {
  return at::zeros({size}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
}

const std::vector<Planted>& planted() {
  static const std::vector<Planted> all{
      {"another stream reads what was written, without a wait", Fault::kRace,
       [](bool faulty) {
         const at::Tensor x = at::ones({kSize}, on_device());
         const c10::Stream side = another_stream();
         if (!faulty) wait(side, main_stream());
         const at::Tensor y = on(side, [&] { return x * 2; });
         wait(main_stream(), side);
       }},
      {"what another stream has made is used, without a wait", Fault::kRace,
       [](bool faulty) {
         const c10::Stream side = another_stream();
         const at::Tensor y = on(side, [&] { return at::ones({kSize}, on_device()); });
         if (!faulty) wait(main_stream(), side);
         const at::Tensor z = y + 1;
         wait(side, main_stream());
       }},
      {"another stream overwrites what is still read", Fault::kRace,
       [](bool faulty) {
         const at::Tensor x = at::ones({kSize}, on_device());
         const c10::Stream side = another_stream();
         wait(side, main_stream());
         const at::Tensor y = x * 2;
         if (!faulty) wait(side, main_stream());
         on(side, [&] { x.zero_(); });
         wait(main_stream(), side);
       }},
      {"two streams write the same bytes", Fault::kRace,
       [](bool faulty) {
         const at::Tensor x = at::empty({kSize}, on_device());
         const c10::Stream side = another_stream();
         wait(side, main_stream());
         x.narrow(0, 0, kSize / 2 + (faulty ? 1 : 0)).fill_(1);
         on(side, [&] { x.narrow(0, kSize / 2, kSize / 2).fill_(2); });
         wait(main_stream(), side);
       }},
      {"the event that is waited for was recorded before the write", Fault::kRace,
       [](bool faulty) {
         const at::Tensor x = at::zeros({kSize}, on_device());
         const c10::Stream side = another_stream();
         c10::Event event(kDeviceType);
         if (faulty) event.record(main_stream());
         x.fill_(1);
         if (!faulty) event.record(main_stream());
         event.block(side);
         on(side, [&] { return x.sum(); });
         wait(main_stream(), side);
       }},
      {"the host waits for the wrong stream", Fault::kRace,
       [](bool faulty) {
         const c10::Stream one = another_stream(), other = another_stream();
         const at::Tensor x = on(one, [&] { return at::ones({kSize}, on_device()); });
         guard().synchronizeStream(faulty ? other : one);
         on(other, [&] { return x.sum(); });
         wait(one, other);
       }},
      {"memory of one stream's pool is written by another that has not waited for it", Fault::kRace,
       [](bool faulty) {
         {
           const at::Tensor before = at::ones({kSize}, on_device()) * 2;
         }
         const at::Tensor x = at::empty({kSize}, on_device());
         const c10::Stream side = another_stream();
         if (!faulty) wait(side, main_stream());
         on(side, [&] { x.zero_(); });
         wait(main_stream(), side);
       }},
      {"a buffer is freed while another stream uses it, and is recorded nowhere",
       Fault::kFreedInUse,
       [](bool faulty) {
         const c10::Stream side = another_stream();
         {
           const at::Tensor x = at::ones({kSize}, on_device());
           wait(side, main_stream());
           on(side, [&] { return x.sum(); });
           if (!faulty) x.record_stream(side);
         }
         at::empty({7}, on_device());
         wait(main_stream(), side);
       }},
      {"a buffer is recorded on a stream that does not use it", Fault::kFreedInUse,
       [](bool faulty) {
         const c10::Stream side = another_stream(), other = another_stream();
         {
           const at::Tensor x = at::ones({kSize}, on_device());
           wait(side, main_stream());
           on(side, [&] { return x.sum(); });
           x.record_stream(faulty ? other : side);
         }
         at::empty({7}, on_device());
         wait(main_stream(), side);
       }},
      {"a buffer is freed before the wait for the stream that uses it", Fault::kFreedInUse,
       [](bool faulty) {
         const c10::Stream side = another_stream();
         std::optional<at::Tensor> x = at::ones({kSize}, on_device());
         wait(side, main_stream());
         on(side, [&] { return x->sum(); });
         x.reset();
         if (!faulty) wait(main_stream(), side);
         at::empty({7}, on_device());
         wait(main_stream(), side);
       }},
      {"a kernel gets the address of a buffer that is freed", Fault::kFreed,
       [](bool faulty) {
         std::optional<at::Tensor> x = at::ones({kSize}, on_device());
         const at::Tensor view = at::from_blob(x->data_ptr(), {kSize}, on_device());
         if (faulty) x.reset();
         static_cast<void>(view.sum());
       }},
      {"a kernel reads what nothing has written", Fault::kUninitialized,
       [](bool faulty) {
         const at::Tensor x = at::empty({kSize}, on_device());
         if (!faulty) x.zero_();
         static_cast<void>(x.sum());
       }},
      {"an operator gets tensors of two devices", Fault::kWrongDevice,
       [](bool faulty) {
         const at::Tensor x = at::ones({kSize}, on_device(at::kFloat, 0)),
                          y = at::ones({kSize}, on_device(at::kFloat, faulty ? 1 : 0));
         static_cast<void>(at::mm(x.unsqueeze(0), y.unsqueeze(1)));
       }},
      {"an operator gets a tensor of the host", Fault::kWrongDevice,
       [](bool faulty) {
         const at::Tensor x = at::ones({1, kSize}, on_device()), y = at::ones({kSize, 1});
         static_cast<void>(at::mm(x, faulty ? y : y.to(device())));
       }},
      {"a thread starts a kernel on the device of threads that chose none", Fault::kWrongDevice,
       [](bool faulty) {
         const at::Tensor x = at::ones({kSize}, on_device(at::kFloat, 1));
         std::exception_ptr error;
         std::thread([&] {
           try {
             if (!faulty) guard().setDevice(device(1));
             run_kernel("ours", {x}, {},
                        [](const Tensors& given) -> Tensors { return {given[0] * 2}; });
           } catch (...) {
             error = std::current_exception();
           }
         }).join();
         if (error) std::rethrow_exception(error);
       }},
      {"pinned memory goes while a copy that torch cannot tell by its address is under way",
       Fault::kPinnedFreed,
       [](bool faulty) {
         const at::Tensor x = at::ones({kSize}, on_device());
         {
           const at::Tensor all = pinned(2 * kSize);
           // Another storage, from the middle of the memory on.
           const at::Tensor part = at::from_blob(all.data_ptr<float>() + kSize, {kSize});
           part.copy_(x, /*non_blocking=*/true);
           if (!faulty) guard().synchronizeStream(main_stream());
         }
         at::empty({7}, on_device());
       }},
  };
  return all;
}

TEST_CASE("accelerator: each planted fault is found, and nothing else is") {
  install();
  check_planted(planted());
}

/// A host access to memory, and the message before the process ends.
struct Touch {
  std::string name;
  std::function<void*()> prepare;  // returns the address; `at` keeps the memory alive
  bool writes;
  const char* says;
};

TEST_CASE("accelerator: a host that touches what it must not ends, and says why") {
  install();
  std::vector<at::Tensor> kept;
  const auto copy = [&](bool to_host) {
    const at::Tensor host = pinned(), x = at::ones({kSize}, on_device());
    (to_host ? host : x).copy_(to_host ? x : host, /*non_blocking=*/true);
    kept = {host, x};
    return host.data_ptr();
  };
  const std::vector<Touch> touches{
      {"reads memory of the device",
       [&] {
         kept = {at::ones({kSize}, on_device())};
         return kept[0].data_ptr();
       },
       false, "memory of a device"},
      {"writes memory of the device",
       [&] {
         kept = {at::ones({kSize}, on_device())};
         return kept[0].data_ptr();
       },
       true, "memory of a device"},
      {"reads memory of the device that is freed",
       [&] { return at::ones({kSize}, on_device()).data_ptr(); }, false, "(freed)"},
      {"reads what a copy brings, before it has waited", [&] { return copy(true); }, false,
       "copy to the host"},
      {"overwrites what a copy takes, before it has waited", [&] { return copy(false); }, true,
       "copy to the device"},
  };
  for (const Touch& touch : touches) {
    CAPTURE(touch.name);
    auto* const at = static_cast<volatile float*>(touch.prepare());
    const ChildEnd end = in_child([&] {
      if (touch.writes) {
        *at = 1;
      } else {
        static_cast<void>(*at);
      }
    });
    CHECK(end.status == kFaultStatus);
    CAPTURE(end.errors);
    CHECK(end.errors.find(touch.writes ? "the host writes" : "the host reads") !=
          std::string::npos);
    CHECK(end.errors.find(touch.says) != std::string::npos);
    CHECK(end.errors.find("allocation ") != std::string::npos);
    guard().synchronizeDevice(0);
  }
  // After the host has waited, it may use the pinned memory. It may always read memory that a copy
  // reads.
  for (const bool to_host : {true, false}) {
    auto* const at = static_cast<volatile float*>(copy(to_host));
    if (to_host) guard().synchronizeDevice(0);
    CHECK(*at == (to_host ? 1.0F : 0.0F));
    guard().synchronizeDevice(0);
    *at = 3;
    CHECK(*at == 3);
  }
}

TEST_CASE("accelerator: numbers of fresh and of freed memory are NaN") {
  install();
  const auto first_of = [](const at::Tensor& x) {
    KernelSide side;
    return side.of(x).flatten()[0].item<double>();
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor fresh = at::empty({3, 5}, on_device(dtype));
    CHECK(std::isnan(first_of(fresh)));
    std::optional<at::Tensor> freed = at::ones({3, 5}, on_device(dtype));
    const at::Tensor view = at::from_blob(freed->data_ptr(), {3, 5}, on_device(dtype));
    CHECK(first_of(view) == 1);
    freed.reset();
    CHECK(std::isnan(first_of(view)));
  }
  // Unwritten rows show in the result.
  const at::Tensor rows = at::empty({4, 8}, on_device());
  rows.narrow(0, 0, 3).fill_(1);
  CHECK(std::isnan(rows.sum().item<double>()));
  CHECK(rows.narrow(0, 0, 3).sum().item<double>() == 24);
}

TEST_CASE("accelerator: waits of the host, launches and bytes are counted") {
  install();
  const at::Tensor x = at::ones({kSize}, on_device()), host = pinned();
  const auto counted = [](const std::function<void()>& work) {
    Machine::get().restart_counters();
    work();
    return Machine::get().counters();
  };
  CHECK(counted([&] { x * 2 + 1; }).launches == 2);
  CHECK(counted([&] { x * 2 + 1; }).host_syncs == 0);
  CHECK(counted([&] { x.view({2, -1}).t().narrow(0, 0, 3).unsqueeze(0); }).launches == 0);
  const Counters item = counted([&] { static_cast<void>((x * 2).sum().item<float>()); });
  CHECK(item.host_syncs == 1);
  CHECK(item.host_syncs_of.at("item") == 1);
  CHECK(counted([&] { static_cast<void>(x.ne(0).nonzero()); }).host_syncs == 1);
  CHECK(counted([&] { host.copy_(x, /*non_blocking=*/true); }).host_syncs == 0);
  // Memory that is not pinned makes the host wait, even with non_blocking.
  const Counters to_host = counted([&] {
    at::empty({kSize}).copy_(x, /*non_blocking=*/true);
    x.copy_(at::zeros({kSize / 2}).repeat({2}), /*non_blocking=*/true);
  });
  CHECK(to_host.host_syncs == 2);
  CHECK(to_host.bytes_to_host == 4 * kSize);
  CHECK(to_host.bytes_to_device == 4 * kSize);

  Machine::get().restart_peak(0);
  const DeviceBytes before = Machine::get().bytes(0);
  {
    const at::Tensor more = at::empty({100}, on_device(at::kDouble));
  }
  CHECK(Machine::get().bytes(0).most - before.now == 800);
  CHECK(Machine::get().bytes(0).now == before.now);
}

}  // namespace
}  // namespace longspan::testing::accelerator
