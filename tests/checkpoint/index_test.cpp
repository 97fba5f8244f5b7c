// SPDX-License-Identifier: Apache-2.0
// A rank that loads opens and reads what it needs, however many ranks saved and load.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "checkpoint/checksum_index.h"
#include "checkpoint/collective.h"
#include "checkpoint/file_system.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/sealed_json.h"
#include "checkpoint/small_model.h"
#include "checkpoint/writer.h"
#include "comm/emulated/recorded_calls.h"
#include "files/temporary_folder.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/models/pretrained.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

struct Counts {
  int64_t opens = 0;
  int64_t bytes = 0;
};

Counts counted(const std::function<void()>& action) {
  const Counts before{file_counts().opens, file_counts().bytes_read};
  action();
  return {file_counts().opens - before.opens, file_counts().bytes_read - before.bytes};
}

UnitOptions over_all(const World& world) {
  return {.mesh = Mesh(world, {{"dp", world.size()}})};
}

/// A checkpoint of a world of that many ranks, one after another in this process.
void save_as_ranks(int64_t ranks, const std::string& folder) {
  const UnfinishedFolder unfinished(folder);
  unfinished.make();
  std::optional<FilePlan> plan;
  std::optional<AdamW::Progress> progress;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto world = World::emulated({.rank = rank, .size = ranks});
    const Subject subject(world, over_all(world), 1);
    const ShardedModel sharded(*subject.model, "save");
    const auto parameters =
        stored_parameters(*subject.model, sharded, &*subject.optimizer, {}, Purpose::save);
    if (rank == 0) {
      plan = plan_files(parameters, {});
      progress = subject.optimizer->progress();
    }
    write_part(unfinished, parameters, *plan, {}, rank);
  }
  write_state(unfinished, *plan, ranks, progress, {.numbers = {{"step", 7}}});
  unfinished.finish();
}

Counts load_as_rank(int64_t rank, int64_t ranks, const std::string& folder) {
  const auto world = World::emulated({.rank = rank, .size = ranks});
  Subject subject(world, over_all(world), 2);
  return counted(
      [&] { EXPECT_EQ(load(subject.model, *subject.optimizer, folder).numbers.at("step"), 7); });
}

TEST(CheckpointIndex, ALoadOpensAsManyFilesHoweverManyRanksSaved) {
  const TemporaryFolder place;
  save_as_ranks(1, place.file("of-1"));
  save_as_ranks(40, place.file("of-40"));
  verify_checkpoint(place.file("of-40"));
  // The state, the tensors, the checksums, and three files with tensors.
  for (const char* name : {"of-1", "of-40"}) {
    EXPECT_LE(load_as_rank(0, 4, place.file(name)).opens, 6) << name;
    EXPECT_LE(load_as_rank(3, 4, place.file(name)).opens, 6) << name;
    EXPECT_LE(load_as_rank(0, 16384, place.file(name)).opens, 6) << name;
    EXPECT_LE(load_as_rank(16000, 16384, place.file(name)).opens, 4) << name;
  }
  // Nothing is left of what the ranks told the first one.
  for (const auto& entry : fs::directory_iterator(place.file("of-40"))) {
    EXPECT_NE(entry.path().extension(), ".part") << entry.path();
  }
}

/// Of version 1: one file of checksums of each rank, and none of tensors.
void make_version_1(const std::string& folder) {
  const MappedFile checksums(folder + "/" + kChecksumsName);
  Json files = Json::object();
  for (const auto& file : read_index(folder)) {
    Json list = Json::array();
    for (int64_t i = file.first; i < file.first + file.count; ++i) {
      BlockRecord record;
      std::memcpy(&record, checksums.data() + i * 24, 24);
      list.push_back({record.begin, record.end, record.crc});
    }
    files[file.name] = std::move(list);
  }
  fs::remove(folder + "/" + kTensorsName);
  fs::remove(folder + "/" + kChecksumsName);
  write_sealed(folder + "/checksums-0.json", {{"files", files}});
  auto state = read_sealed(folder + "/state.json");
  state["version"] = 1;
  state["optimizer"].erase("scaled");
  state["optimizer"]["loss_scale"] = 1.0;
  write_sealed(folder + "/state.json", state);
}

TEST(CheckpointIndex, CheckpointsOfTheFirstVersionAreRead) {
  const TemporaryFolder place;
  const auto folder = place.file("step-7");
  save_as_ranks(1, folder);
  make_version_1(folder);
  EXPECT_EQ(find_checkpoints(place.path()).size(), 1u);
  verify_checkpoint(folder);
  load_as_rank(0, 1, folder);
  const auto world = World::emulated({.size = 1});
  Subject subject(world, over_all(world), 1);
  AdamW scaled(subject.model, {.scaling = LossScaling{.initial = 64}});
  load(subject.model, scaled, folder);
  EXPECT_EQ(scaled.loss_scale(), 64) << "it had none";
}

TEST(CheckpointIndex, BytesThatNoRankWroteAreFoundWhenItIsSaved) {
  const TemporaryFolder place;
  const UnfinishedFolder unfinished(place.file("step-1"));
  unfinished.make();
  const auto world = World::emulated({.rank = 0, .size = 2});  // rank 1 writes nothing
  const Subject subject(world, over_all(world), 1);
  const ShardedModel sharded(*subject.model, "save");
  const auto parameters = stored_parameters(*subject.model, sharded, nullptr, {}, Purpose::save);
  const auto plan = plan_files(parameters, {});
  write_part(unfinished, parameters, plan, {}, 0);
  try {
    write_state(unfinished, plan, 1, {}, {});
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("a rank's bytes are missing"), std::string::npos);
  }
}

TEST(CheckpointIndex, RanksKeepCommunicatingWhileOneTakesLong) {
  const auto world = World::emulated({.size = 3});
  const Subject subject(world, over_all(world), 1);
  const ShardedModel sharded(*subject.model, "load");
  const auto calls = [&] { return recorded_calls(world.communicator()).size(); };
  const auto before = calls();
  bool heard = false;
  const auto action = [&] {  // a disk that is slow until the ranks have talked
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!heard && std::chrono::steady_clock::now() < deadline) {
      heard = calls() >= before + 4;
      std::this_thread::yield();
    }
    TORCH_CHECK_VALUE(false, "[test] at the end");
  };
  try {
    on_all_ranks_for_long(sharded, action, std::chrono::milliseconds(1));
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(error.what_without_backtrace(), "[test] at the end");
  }
  EXPECT_TRUE(heard);
}

TEST(CheckpointIndex, ALlamaIsCheckedBeforeItsFirstElementIsLoaded) {
  const TemporaryFolder place;
  const auto world = World::emulated({.size = 1});
  LlamaOptions options;
  options.vocab = 32;
  options.dim = 8;
  options.layers = 2;
  options.heads = options.kv_heads = 2;
  options.head_dim = 4;
  options.ffn = 16;
  const auto make = [&](float value) {
    auto model = make_llama(options);
    for (const auto& parameter : model->parameters()) parameter.detach().fill_(value);
    for (const auto& unit : model->units()) fully_shard(unit, over_all(world));
    fully_shard(model, over_all(world));
    return model;
  };
  const auto folder = place.file("llama");
  const auto saved = make(1);
  save(*saved, nullptr, folder, {.slices = [&](const std::string& name, at::IntArrayRef shape) {
    return saved->slices_of(name, shape);
  }});
  // The index names all tensors, but the last one is not as the model needs it.
  const auto path = folder + "/model-00001-of-00001.safetensors";
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  {
    const SafetensorsFile file(path);
    for (const auto& [name, about] : file.tensors()) tensors.emplace_back(name, file.read(name));
  }
  const std::string last = "model.norm.weight";
  const auto without = [&](std::optional<at::Tensor> instead) {
    std::vector<std::pair<std::string, at::Tensor>> result;
    for (const auto& [name, tensor] : tensors) {
      if (name != last) result.emplace_back(name, tensor);
    }
    if (instead) result.emplace_back(last, *instead);
    return result;
  };
  for (const auto& instead : {std::optional<at::Tensor>(), std::optional(at::ones({7}))}) {
    write_safetensors(path, without(instead));
    const auto model = make(0.5);
    try {
      load_weights(*model, folder);
      FAIL() << "loaded";
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what()).find("'" + last + "'"), std::string::npos)
          << error.what();
    }
    for (const auto& [name, weight] : full_parameters(*model)) {
      EXPECT_TRUE((weight == 0.5).all().item<bool>()) << name << " was changed";
    }
  }
}

TEST(CheckpointIndex, ALlamaOfAnotherProgramIsReadInParts) {
  const TemporaryFolder place;
  const auto folder = place.file("llama");
  LlamaOptions options;
  options.vocab = 512;
  options.dim = 64;
  options.layers = 2;
  options.heads = options.kv_heads = 4;
  options.head_dim = 16;
  options.ffn = 256;
  const auto make = [&](int64_t rank, int64_t ranks) {
    const auto world = World::emulated({.rank = rank, .size = ranks});
    auto model = make_llama(options);
    for (const auto& unit : model->units()) fully_shard(unit, over_all(world));
    fully_shard(model, over_all(world));
    return model;
  };
  int64_t elements = 0;
  {
    const auto model = make(0, 1);
    for (const auto& [name, weight] : full_parameters(*model)) elements += weight.numel();
    const auto slices = [&](const std::string& name, at::IntArrayRef shape) {
      return model->slices_of(name, shape);
    };
    save(*model, nullptr, folder, {.slices = slices});
  }
  constexpr int64_t kHeader = 8192;  // of one file, and the index
  for (const int64_t ranks : {1, 4, 16384}) {
    for (const int64_t rank : {int64_t{0}, ranks - 1}) {
      const auto model = make(rank, ranks);
      const auto counts = counted([&] { load_weights(*model, folder); });
      EXPECT_LE(counts.opens, 2) << "the index and the file";
      // Padding: a rank may have up to 16 bytes more of each parameter.
      const int64_t parts = std::ssize(model->parameters());
      EXPECT_LE(counts.bytes, elements * 4 / ranks + parts * 16 + kHeader)
          << rank << " of " << ranks;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
