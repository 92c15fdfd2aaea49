// Helpers for the tables of keys (config/*_keys.cpp), one table for each section of the help. No
// torch.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "longspan/config/keys.h"

namespace longspan::key_tables {

// Upper limits. Products of such values (for example the tokens of a micro-batch) stay countable,
// and a mistyped size causes no huge allocation.
inline constexpr double kMostTokens = INT32_MAX;  // of a row
inline constexpr double kMostRows = 1e6;          // of a micro-batch; also micro-batches of a step
inline constexpr double kMostSteps = 1e15;
inline constexpr double kMostEpochs = 1e9;
inline constexpr double kMostProcesses = 4096;  // of a machine
inline constexpr double kMostSeconds = 1e9;     // about 30 years

/// A number, at least `least` and at most `most`.
Key number(std::string_view name, Field field, OnResume on_resume, double least,
           std::string_view help, double most = std::numeric_limits<double>::infinity());
/// One of the words `choices`. `others`: further words of LLaMA-Factory, unsupported unless they
/// are also in `choices`.
Key choice(std::string_view name, Field field, OnResume on_resume,
           std::vector<std::string_view> choices, std::string_view help,
           std::vector<std::string_view> others = {});
/// A number of steps, or a fraction of all steps.
Key steps(std::string_view name, Field field, OnResume on_resume, std::string_view help,
          bool none_allowed = false);
/// Text or a boolean.
Key plain(std::string_view name, Field field, OnResume on_resume, std::string_view help);

/// Returns the key of a number, which also accepts a word that means 0 (Key::zero_word).
Key or_zero(std::string_view word, Key key);

/// Returns the key, restricted to one finetuning_type (Key::finetuning_type).
Key only_for(FinetuningType type, Key key);

/// Returns the key with a note on LLaMA-Factory's different behaviour (Key::differs).
Key noted(Key key, std::string_view differs);
inline constexpr std::string_view kOwn = "It has no such key.";
inline constexpr std::string_view kDeepSpeed =
    "It has no such key; a DeepSpeed file says it, which the key deepspeed takes here too.";
inline constexpr std::string_view kShare =
    "It has no sequence parallelism in its main trainer; the name is 360-LLaMA-Factory's.";

KeySection model_keys();
KeySection method_keys();
KeySection preference_keys();
KeySection policy_keys();
KeySection generation_keys();
KeySection data_keys();
KeySection output_keys();
KeySection optimization_keys();
KeySection memory_keys();
KeySection parallel_keys();
KeySection export_keys();

}  // namespace longspan::key_tables
