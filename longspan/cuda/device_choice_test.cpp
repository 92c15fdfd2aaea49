#include "longspan/cuda/device_choice.h"

#include <doctest/doctest.h>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"

namespace longspan {

namespace {

Config config_of(const std::string& device, bool bf16 = false) {
  Config config;
  config.model.device = device;
  config.optimization.bf16 = bf16;
  return config;
}

// A machine with `count` GPUs.
auto machine(int count) {
  return [count] {
    return Gpus{.count = count,
                .why_none = count == 0 ? "no NVIDIA driver here" : "",
                .name = count == 0 ? "" : "CUDA"};
  };
}

}  // namespace

TEST_CASE("device: auto takes GPUs where there are some, cpu never looks") {
  CHECK(choose_device(config_of("auto", true).model, machine(2)).cuda());
  CHECK(choose_device(config_of("auto", true).model, machine(2)).num_gpus == 2);
  CHECK(choose_device(config_of("auto", true).model, machine(2)).gpu_name == "CUDA");
  CHECK(choose_device(config_of("cuda", true).model, machine(1)).cuda());
  for (const bool bf16 : {false, true}) {
    const DeviceChoice choice = choose_device(config_of("auto", bf16).model, machine(0));
    CHECK(choice.kind == DeviceKind::kCpu);
    CHECK(choice.why_cpu == "no CUDA: no NVIDIA driver here");
    int num_calls = 0;
    const auto find = [&num_calls] {
      ++num_calls;
      return Gpus{.count = 8, .why_none = {}};
    };
    CHECK(!choose_device(config_of("cpu", bf16).model, find).cuda());
    CHECK(num_calls == 0);
  }
  Config pure = config_of("auto");
  pure.model.pure_bf16 = true;
  CHECK(choose_device(pure.model, machine(1)).cuda());
}

TEST_CASE("device: what cannot run is said with what to set") {
  CHECK_THROWS_WITH_AS(choose_device(config_of("cuda", true).model, machine(0)),
                       doctest::Contains("CUDA cannot be used: no NVIDIA driver here. Set device: "
                                         "cpu"),
                       UserError);
  const auto old_driver = [] {
    return Gpus{.count = 0, .why_none = "the driver is too old", .broken = true};
  };
  for (const char* device : {"auto", "cuda"}) {
    CHECK_THROWS_WITH_AS(choose_device(config_of(device).model, old_driver),
                         doctest::Contains("CUDA cannot be used: the driver is too old"),
                         UserError);
  }
  CHECK(!choose_device(config_of("cpu").model, old_driver).cuda());
}

TEST_CASE("device: each process needs a GPU of its own") {
  const DeviceChoice two = choose_device(config_of("auto", true).model, machine(2));
  CHECK_NOTHROW(require_gpus(two, 2));
  CHECK_THROWS_WITH_AS(require_gpus(two, 3),
                       doctest::Contains("3 processes run on this machine, but they see 2 GPUs"),
                       UserError);
  CHECK_THROWS_WITH_AS(require_gpus(two, 3), doctest::Contains("device: cpu"), UserError);
  CHECK_THROWS_WITH_AS(require_gpus(two, 3), doctest::Contains("share_gpus: true"), UserError);
  CHECK_NOTHROW(require_gpus(choose_device(config_of("cpu").model, machine(2)), 64));
  Config sharing = config_of("auto");
  sharing.model.share_gpus = true;
  const DeviceChoice shared = choose_device(sharing.model, machine(2));
  CHECK(shared.shared);
  CHECK_NOTHROW(require_gpus(shared, 3));
}

}  // namespace longspan
