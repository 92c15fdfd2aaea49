// Sessions whose ranks are threads of a test.
#pragma once

#include <doctest/doctest.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "longspan/config/config.h"
#include "longspan/session/session.h"
#include "longspan/testing/silent_server.h"
#include "longspan/testing/thread_groups.h"

namespace longspan::testing {

/// Runs `body` on each rank of a session. Rethrows a rank's error.
inline void on_session_ranks(int num_ranks, const Config& config, const ModelParts& model,
                             const std::function<void(Session&)>& body) {
  const int own_port = free_port();
  std::vector<std::exception_ptr> errors(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Session session(config, {.where = {.rank = rank,
                                           .world_size = num_ranks,
                                           .local_rank = rank,
                                           .local_world_size = num_ranks,
                                           .master_port = own_port,
                                           .interfaces = {},
                                           .store_prefix = {},
                                           .link = &thread_link()},
                                 .model = &model});
        session.run([&] { body(session); });
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Sums are in fp64; hidden states are in fp32, whose roundings differ with the blocks.
inline void check_close(const std::vector<double>& losses, const std::vector<double>& expected) {
  REQUIRE(losses.size() == expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(1e-5));
  }
}

}  // namespace longspan::testing
