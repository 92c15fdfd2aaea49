// Deliberate faults.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/testing/accelerator/streams_for_tests.h"

namespace longspan::testing::accelerator {

/// run(true) has the fault, run(false) does not.
struct Planted {
  std::string name;
  Fault fault;
  std::function<void(bool faulty)> run;
};

/// Checks that each fault is found every time, by its name, and that the correct version passes.
inline void check_planted(const std::vector<Planted>& planted) {
  for (const Planted& one : planted) {
    CAPTURE(one.name);
    for (const int time : {1, 2, 3}) {
      CAPTURE(time);
      CHECK_NOTHROW(one.run(false));
      std::optional<Fault> found;
      std::string text;
      try {
        one.run(true);
      } catch (const FaultError& error) {
        found = error.fault;
        text = error.what();
      }
      REQUIRE(found.has_value());
      CAPTURE(text);
      CHECK(*found == one.fault);
      guard().synchronizeDevice(0);  // clears leftovers of the fault
      guard().synchronizeDevice(1);
    }
  }
}

}  // namespace longspan::testing::accelerator
