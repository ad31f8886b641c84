/* A site of a Causeway run for trainers of any language: join a run, hand over the values that are
 * due, take merged values back, and go on training meanwhile.
 *
 *   causeway_site* site;
 *   causeway_site_join(&options, tensors, tensor_count, NULL, 0, &site, &error);
 *   causeway_site_ranges(site, CAUSEWAY_ALL, &ranges, &count, &error);
 *   for each range: arena -> parameters
 *   causeway_site_ready(site, &error);
 *   for (;;) {
 *     causeway_site_wait(site, -1, &orders, &error);          // until training may go on
 *     if (orders.finished || orders.drain) break;
 *     if (orders.anew) arena -> parameters, over the ranges of CAUSEWAY_ALL; continue
 *     ... one optimizer step ...
 *     causeway_site_next(site, &touched, &touched_count, &error);
 *     for each touched fragment: parameters -> arena, over its ranges
 *     causeway_site_step(site, tokens, draws, &changed, &changed_count, &error);
 *     for each changed fragment: arena -> parameters, over its ranges
 *   }
 *   if (orders.finished) {
 *     causeway_site_next, causeway_site_finish: as next and step, with their copies
 *   }
 *   causeway_site_leave(site, CAUSEWAY_FINISHED, NULL, &error);
 *   causeway_site_free(site);
 *
 * The coordinator owns the schedule, the codecs, the fragments and the budget; nothing here repeats
 * them. The arena is one array of fp32 values on the host that holds every tensor of the run; a
 * fragment is one contiguous range of it. Values cross between it and the trainer's parameters only
 * where this interface says so.
 *
 * Where the trainer's tensors are on CUDA devices (options.on_device) there is no arena: in its
 * place causeway_site_gather takes touched fragments from the tensors, and causeway_site_scatter
 * writes changed ones to them. Encoding, merging and hashing are kernels; codes alone cross to the
 * host.
 *
 * Memory: 8 bytes per parameter that is owned (the arena and the published copy), and what is in
 * flight. A state has 4 or 8 for each of all parameters, and rank 0 twice that while it saves. On a
 * device 4 (the published copy, which may be in page-locked host memory), 4 more if any tensor has
 * values of two bytes, and two fragments.
 *
 * Threads: one thread at a time calls the functions of a site, not always the same one. Blocking
 * calls are ended by causeway_site_cancel and causeway_site_drain, from any thread. The library's
 * own threads never call back: log lines are queued, and the log function is called by the thread
 * that is inside a function of this interface, while it waits, too. The queue is the process's:
 * with several sites, each hands out the lines of all.
 *
 * Fork: a child process may not use a site of its parent: every function answers
 * CAUSEWAY_FAILED_PRECONDITION there, and causeway_site_free does nothing. The parent goes on.
 *
 * Errors: functions return a CAUSEWAY_* code, which are those of gRPC and Abseil; 0 is success. The
 * message, at most CAUSEWAY_MESSAGE_BYTES long, says what was expected, what came and what to do.
 * `error` may be NULL. CAUSEWAY_DEADLINE_EXCEEDED of causeway_site_wait and
 * CAUSEWAY_INVALID_ARGUMENT change nothing. After CAUSEWAY_CANCELLED the site may be saved, left
 * and freed; after any other error it may be left as FAILED and freed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAUSEWAY_API __attribute__((visibility("default")))

/* Changes when a struct or a function does; causeway_abi_version() is what the library has. */
#define CAUSEWAY_ABI_VERSION 6
#define CAUSEWAY_MESSAGE_BYTES 2048

enum {
  CAUSEWAY_OK = 0,
  CAUSEWAY_CANCELLED = 1,
  CAUSEWAY_UNKNOWN = 2,
  CAUSEWAY_INVALID_ARGUMENT = 3,
  CAUSEWAY_DEADLINE_EXCEEDED = 4,
  CAUSEWAY_NOT_FOUND = 5,
  CAUSEWAY_ALREADY_EXISTS = 6,
  CAUSEWAY_PERMISSION_DENIED = 7,
  CAUSEWAY_RESOURCE_EXHAUSTED = 8,
  CAUSEWAY_FAILED_PRECONDITION = 9,
  CAUSEWAY_ABORTED = 10,
  CAUSEWAY_OUT_OF_RANGE = 11,
  CAUSEWAY_UNIMPLEMENTED = 12,
  CAUSEWAY_INTERNAL = 13,
  CAUSEWAY_UNAVAILABLE = 14,
  CAUSEWAY_DATA_LOSS = 15,
  CAUSEWAY_UNAUTHENTICATED = 16,
};

typedef struct {
  int code;
  char message[CAUSEWAY_MESSAGE_BYTES];
} causeway_error;

typedef struct causeway_site causeway_site;

/* A tensor that the site trains, by its fully qualified name. */
typedef struct {
  const char* name;
  const int64_t* shape;
  int32_t rank; /* 0 .. 8 */
} causeway_tensor;

enum { CAUSEWAY_FLOAT32 = 0, CAUSEWAY_BFLOAT16 = 1, CAUSEWAY_FLOAT16 = 2 };

/* Values `begin` .. `end` of a tensor in a device's memory, row-major, without gaps. */
typedef struct {
  void* data;     /* The first of them. */
  int64_t tensor; /* Index in the array given to join. */
  int64_t begin;
  int64_t end;
  int32_t type;   /* CAUSEWAY_FLOAT32 and so on. */
  int32_t device; /* CUDA's number of that device. */
} causeway_device_values;

/* Tensors of two bytes per value are rounded copies: what rounding left out stays on the device,
 * and is added when they are gathered again.
 *
 * Each of several devices owns a share of every fragment, as ranks do: the values that it has, up
 * to whole chunks of codecs. causeway_site_pieces says which, of the device at that place of
 * `devices`. What it owns of another one's tensors has a copy on it, which the program makes room
 * for, hands over by causeway_site_move, fills before causeway_site_gather and takes back after
 * causeway_site_scatter, on the devices' streams. */
typedef struct {
  size_t size;               /* sizeof(causeway_device) */
  const int32_t* devices;    /* CUDA's numbers; with links one. Copied. */
  int32_t device_count;      /* 1 .. 64 */
  int32_t published_on_host; /* 1: the published copy is in page-locked host memory. */
  /* Every value of every tensor, once. With links, what is there. Where ranks or devices are
   * several, causeway_site_move hands over the rest. Copied. */
  const causeway_device_values* values;
  int64_t value_count;
} causeway_device;

enum { CAUSEWAY_LOG_INFO = 0, CAUSEWAY_LOG_WARNING = 1, CAUSEWAY_LOG_ERROR = 2 };
typedef void (*causeway_log_function)(void* context, int level, const char* line);

/* Hands out the initial values of tensor `index`: writes `count` fp32 values, row-major, from
 * element `offset` on to `values`. Called by causeway_site_join alone, on its thread, and only if
 * the run waits for a site that brings its model: then for all tensors in order, twice, with the
 * same values both times. Returns 0, or anything else to give up (CAUSEWAY_ABORTED). */
typedef int (*causeway_values_function)(void* context, int64_t index, int64_t offset, int64_t count,
                                        float* values);

/* --- Sites of several processes ---
 * Rank 0 joins the run, the others follow it. Each owns a share of every fragment, which it
 * encodes, merges and hashes: codes alone cross between them. The program carries their messages,
 * with whatever its processes have between them, on two threads of its own. Values are on the host.
 */
typedef struct causeway_links causeway_links;

/* The ends that rank `rank` of `ranks` has: rank 0 to all others, another one to rank 0. Freed by
 * causeway_links_free, after the site and when no call is under way. */
CAUSEWAY_API int causeway_links_open(int32_t rank, int32_t ranks, causeway_links** links,
                                     causeway_error* error);
/* Waits for the next message, and says to which rank it is to be carried: in order, for one thread.
 * Its bytes stay until the next call. `*size` 0: that rank hears no more, which it is told
 * likewise.
 * `*rank` -1: nothing more comes for any. */
CAUSEWAY_API int causeway_links_outgoing(causeway_links* links, int32_t* rank, const void** bytes,
                                         size_t* size, causeway_error* error);
/* Hands in what the others' causeway_links_outgoing gave, in order. `size` 0: that rank says no
 * more, or is gone. Copied. */
CAUSEWAY_API int causeway_links_incoming(causeway_links* links, int32_t rank, const void* bytes,
                                         size_t size, causeway_error* error);
/* From any thread: whoever waits in causeway_links_outgoing is told that nothing more comes, after
 * what is there. A site that is freed says so by itself, of its links; where join or follow fails,
 * the program does. */
CAUSEWAY_API void causeway_links_close(causeway_links* links);
CAUSEWAY_API void causeway_links_free(causeway_links* links);

/* Values `begin` .. `end` of a tensor, row-major, that a rank is to own. */
typedef struct {
  int64_t tensor; /* Index in the array given to join. */
  int64_t begin;
  int64_t end;
  int32_t rank;
} causeway_share;

/* Hands out what the other ranks follow by. Called once by causeway_site_join, on its thread, after
 * what initial_values is called for. Returns 0, or anything else to give up (CAUSEWAY_ABORTED). */
typedef int (*causeway_start_function)(void* context, const void* bytes, size_t size);

/* Zero and NULL mean the default. Strings are copied. */
typedef struct {
  size_t size; /* sizeof(causeway_site_options) */
  /* HOST:PORT,...; or the line of an invitation, @FILE with one, or RUN or RUN/NAME that boarded by
   * one before: then id and tls_... stay NULL. */
  const char* coordinator;
  const char* identity; /* Folder of what that brings; NULL: ~/.config/causeway/RUN/NAME. */
  const char* id;       /* This site's name, unique in the run. */
  const char* tls_ca;   /* PEM files; --tls_ca and so on of causeway-worker. */
  const char* tls_cert;
  const char* tls_key;
  const char* tls_server_name;
  const char* token_file;
  int32_t insecure;       /* Plaintext beyond this machine. */
  const char* device;     /* For people: "cuda, 8 x H100, torch 2.9". */
  const char* software;   /* For people: "causeway 0.1.0 (torch 2.9.1)". */
  int32_t threads;        /* For people: of the trainer; 0: one. */
  int32_t connections;    /* For bulk transfers; 0: as many as help. */
  double max_upload_mbit; /* 0: no limit. */
  double max_download_mbit;
  double connect_timeout_s;       /* 0: 30. */
  double drain_timeout_s;         /* How long leaving tries to hand over deltas; 0: 20. */
  const char* congestion_control; /* As --congestion_control; NULL: auto. */
  const char* metrics;            /* HOST:PORT that serves /metrics; NULL: none. */
  const char* output;      /* Folder for events.jsonl, metrics.jsonl; NULL: none is written. */
  const char* tensorboard; /* Folder of curves, a subfolder for each site; NULL: none. */
  int32_t data_slot;       /* 1: draws a part of data that all sites share (orders.data_slot
                              says which); 0: the data are this site's own. */
  causeway_values_function initial_values; /* NULL: a run that waits for a model is refused. */
  void* initial_values_context;
  causeway_log_function log; /* NULL: standard error. */
  void* log_context;
  /* NULL, or read while the site joins: once it is not 0, the join ends with CAUSEWAY_CANCELLED.
   * Set it in any thread, or in a signal's handler. */
  const volatile int32_t* stop;
  const causeway_device* on_device; /* NULL: values cross in the arena. */
  causeway_links* links;            /* NULL: the site is one process. */
  const causeway_share* shares;  /* Every value of every tensor once, in any order; the same in */
  int64_t share_count;           /* all ranks. Owned in fact are whole chunks of codecs. */
  causeway_start_function start; /* With links. */
  void* start_context;
} causeway_site_options;

CAUSEWAY_API int causeway_abi_version(void);
CAUSEWAY_API const char* causeway_software_version(void);

/* Asks the coordinator what the run is, as JSON (run_id, config as in the status API, parameters,
 * fragments, awaits_model). The text is freed by causeway_text_free. */
CAUSEWAY_API int causeway_describe(const causeway_site_options* options, char** json,
                                   causeway_error* error);
CAUSEWAY_API void causeway_text_free(char* text);

/* Joins a run with these tensors, which must be those of the run, in any order. With `state`, what
 * causeway_site_save gave, it continues from there bit for bit: the caller has restored its
 * parameters to what they were then. Without, the arena holds the published values, which the
 * caller takes over. Blocks until welcomed. On success `*site` is freed by causeway_site_free. */
CAUSEWAY_API int causeway_site_join(const causeway_site_options* options,
                                    const causeway_tensor* tensors, int64_t tensor_count,
                                    const void* state, size_t state_bytes, causeway_site** site,
                                    causeway_error* error);

/* Follows rank 0 of a site of several processes, by what its `start` handed out, with the same
 * tensors and shares; of the options log, links, shares and on_device count. From then on the
 * library does what rank 0 asks for, on a thread of its own, while rank 0 is inside
 * causeway_site_join, wait, step, finish, save, leave or local: the arena is not to be touched
 * meanwhile, nor anything of it while its site is freed. Of a site that follows there are describe,
 * ranges, pieces, arena, published, gather, scatter, move and free. */
CAUSEWAY_API int causeway_site_follow(const causeway_site_options* options,
                                      const causeway_tensor* tensors, int64_t tensor_count,
                                      const void* start, size_t start_bytes, causeway_site** site,
                                      causeway_error* error);

/* Facts of the run that do not change. */
typedef struct {
  size_t size; /* sizeof(causeway_site_info), set by the caller */
  int32_t fragments;
  int64_t arena_values;
  int64_t parameters;
  int64_t steps;               /* The budget. */
  int32_t steps_between_syncs; /* H */
  int32_t overlap_steps;       /* tau */
  int32_t restored;            /* 1: continues from `state`; 0: from the published values. */
  int32_t brought_model;       /* 1: this site brought table and initial values. */
} causeway_site_info;
CAUSEWAY_API int causeway_site_describe(const causeway_site* site, causeway_site_info* info,
                                        causeway_error* error);
/* The run's configuration and what is known of the site, as JSON; freed by causeway_text_free. */
CAUSEWAY_API int causeway_site_config(const causeway_site* site, char** json,
                                      causeway_error* error);

/* One contiguous piece of a tensor and its place in the arena, in values, row-major. */
typedef struct {
  int64_t tensor; /* Index in the array given to join. */
  int64_t tensor_offset;
  int64_t arena_offset;
  int64_t count;
} causeway_range;

enum { CAUSEWAY_ALL = -1 };

/* The pieces of a fragment, or of all. They live as long as the site. */
CAUSEWAY_API int causeway_site_ranges(const causeway_site* site, int32_t fragment,
                                      const causeway_range** ranges, int64_t* count,
                                      causeway_error* error);

/* The values of the arena that a rank owns, or a device of several, in its order. They live as long
 * as the site. */
typedef struct {
  int64_t begin;
  int64_t end;
  int32_t fragment;
} causeway_piece;
CAUSEWAY_API int causeway_site_pieces(const causeway_site* site, int32_t rank,
                                      const causeway_piece** pieces, int64_t* count,
                                      causeway_error* error);

/* The arena: causeway_site_info.arena_values fp32 values that live as long as the site. NULL where
 * the tensors are on a device. Of several ranks each has its own pieces alone in memory, and
 * touches no others. */
CAUSEWAY_API float* causeway_site_arena(causeway_site* site);
/* The published copy, equally long; it changes in causeway_site_step and _finish, and lies
 * elsewhere once a step or a wait has begun anew: ask again after each of them. From a device it is
 * copied for this call, and stays until the next one. */
CAUSEWAY_API int causeway_site_published(causeway_site* site, const float** values,
                                         causeway_error* error);

/* What the coordinator wants; the latest. */
typedef struct {
  size_t size;       /* sizeof(causeway_site_orders), set by the caller */
  int32_t go;        /* 1: train the next step. */
  int32_t finished;  /* 1: the budget is spent, or stop_at_step is reached. */
  int32_t drain;     /* 1: leave now. */
  int32_t anew;      /* 1: the run went on without this site: every tensor was replaced by the
                        published values in the arena, and is to be taken over (ranges of ALL). */
  int32_t data_slot; /* -1: the site's own data. */
  int64_t next_draw;
  int64_t step;      /* Done, of the schedule. */
  int64_t next_step; /* At which the next inner step will end. */
  int64_t end_step;
} causeway_site_orders;

/* The fragments whose local values in the arena changed otherwise than in causeway_site_step, since
 * this was asked last: all of them after a join without `state` and after orders.anew; after a join
 * with `state` those whose merge the former process was waiting for, usually none. They are to be
 * taken over. Sorted; valid until the next call. */
CAUSEWAY_API int causeway_site_changed(causeway_site* site, const int32_t** fragments,
                                       int32_t* count, causeway_error* error);

/* Tells the coordinator that this site is ready, once, after the values were taken over. Others
 * count on what it sends from then on: a site that saves states saves one before. After orders.anew
 * the next causeway_site_wait says it by itself. */
CAUSEWAY_API int causeway_site_ready(causeway_site* site, causeway_error* error);
/* Waits until training has started and is not paused, or until it is over; up to `timeout_s`
 * (CAUSEWAY_DEADLINE_EXCEEDED), without a limit if it is negative. With 0 it comes back at once,
 * also where published values would have to be fetched first. */
CAUSEWAY_API int causeway_site_wait(causeway_site* site, double timeout_s,
                                    causeway_site_orders* orders, causeway_error* error);

/* Which fragments' local values the coming causeway_site_step, or after orders.finished
 * causeway_site_finish, will read or write: they are to be in the arena before it. Sorted; valid
 * until the next call. Empty at most steps. */
CAUSEWAY_API int causeway_site_next(causeway_site* site, const int32_t** fragments, int32_t* count,
                                    causeway_error* error);

/* After every optimizer step, in order: `tokens` were trained in it, from orders.next_draw on as
 * many draws as `draws` says (own data: tokens or samples, as the site counts). Sends and merges
 * what is due, and waits only for an answer that is due and not there. `changed` fragments have new
 * local values in the arena, which are to be taken over before the next step. Sorted; valid until
 * the next call. A site that has fallen too far behind starts anew: all fragments have changed, and
 * the next causeway_site_wait says so (orders.anew).
 * CAUSEWAY_CANCELLED: the step counts as done, and what it waited for is still in flight: a state
 * saved now continues there. */
CAUSEWAY_API int causeway_site_step(causeway_site* site, int64_t tokens, int64_t draws,
                                    const int32_t** changed, int32_t* count, causeway_error* error);

/* The same of a step at which nothing is due, in one call: causeway_site_next, _step and, without
 * waiting, _wait, which gives `orders`. orders->go is 0 where training may not go on yet:
 * causeway_site_wait waits. Where something is due `passed` is 0, and nothing has changed: these
 * three make the step. After an error `passed` says whether the step was done before it. */
CAUSEWAY_API int causeway_site_pass(causeway_site* site, int64_t tokens, int64_t draws,
                                    int32_t* passed, causeway_site_orders* orders,
                                    causeway_error* error);

/* Figures of the inner step that the next causeway_site_step is about, for the status page, metrics
 * and TensorBoard. NaN: not known. `step_s`: the time that it took, without synchronization; if it
 * is not given, the time since the last causeway_site_wait ended is taken for it. Optional. */
CAUSEWAY_API int causeway_site_report(causeway_site* site, double loss, double step_s,
                                      causeway_error* error);
CAUSEWAY_API int causeway_site_report_evaluation(causeway_site* site, double held_out_loss,
                                                 causeway_error* error);

/* Everything that a bit-exact continuation needs beside the parameters and the optimizer, as they
 * are after the last causeway_site_step; freed by causeway_state_free. Waits until what is in
 * flight is encoded. About 4 bytes per parameter, 8 with error feedback. The coordinator keeps what
 * a restart from it needs once it is told that the state is safe. */
CAUSEWAY_API int causeway_site_save(causeway_site* site, void** state, size_t* state_bytes,
                                    causeway_error* error);
CAUSEWAY_API void causeway_state_free(void* state);
/* The state saved at `step` is on a disk. */
CAUSEWAY_API int causeway_site_saved(causeway_site* site, int64_t step, causeway_error* error);

/* --- Tensors on a device ---
 * `streams` are the cudaStream_t in which the trainer's work is ordered, one of each device of
 * options.on_device, the same in all calls of one step. Nothing here waits for a device unless it
 * says so; errors of a device may come with a later call. The calling thread's device stays what it
 * is. */

/* 0 where options.on_device can name that device; otherwise why not: no driver, one that is too
 * old, no such device, or one for which this library has no machine code. */
CAUSEWAY_API int causeway_device_check(int32_t device, causeway_error* error);
/* Takes the values of these fragments, as causeway_site_next gave them, from the tensors. */
CAUSEWAY_API int causeway_site_gather(causeway_site* site, const int32_t* fragments, int32_t count,
                                      void** streams, causeway_error* error);
/* Writes the values of these fragments, as causeway_site_step gave them, to the tensors; with
 * `published` those of the published copy. */
CAUSEWAY_API int causeway_site_scatter(causeway_site* site, const int32_t* fragments, int32_t count,
                                       int32_t published, void** streams, causeway_error* error);
/* The values lie there from now on: every value, or every one that this rank owns, once, on the
 * device that owns it, and others if you like, which are left alone. Types are those of the join.
 * Waits. */
CAUSEWAY_API int causeway_site_move(causeway_site* site, const causeway_device_values* values,
                                    int64_t value_count, causeway_error* error);
/* Copies exact local values to `values`, or sets them from there, wherever they are; for rank 0
 * those of all ranks. Of the range count arena_offset and count, which must lie in one fragment.
 * For states, where tensors have two bytes per value. Waits. */
CAUSEWAY_API int causeway_site_local(causeway_site* site, const causeway_range* range, int32_t set,
                                     float* values, causeway_error* error);

enum { CAUSEWAY_FINISHED = 1, CAUSEWAY_DRAINED = 2, CAUSEWAY_FAILED = 3 };

/* At the end of the budget: waits for every round in flight and merges it. `changed` as in
 * causeway_site_step. */
CAUSEWAY_API int causeway_site_finish(causeway_site* site, const int32_t** changed, int32_t* count,
                                      causeway_error* error);
/* Ends the site's part. FINISHED, after causeway_site_finish. DRAINED: hands over the deltas in
 * flight, for up to drain_timeout_s. FAILED: with `detail`, at once. The site may still be saved,
 * and freed. */
CAUSEWAY_API int causeway_site_leave(causeway_site* site, int reason, const char* detail,
                                     causeway_error* error);

/* Both from any thread, and in a signal's handler. Drain, as causewayctl drain: orders.drain is
 * set, and a call that waits for an answer returns CAUSEWAY_CANCELLED after drain_timeout_s.
 * Cancel: every blocking call but leave, the present one and all later ones, returns
 * CAUSEWAY_CANCELLED within a moment, or when another rank has done its part. After both, one that
 * waits for a rank that says nothing for drain_timeout_s ends with CAUSEWAY_ABORTED, which names
 * it. */
CAUSEWAY_API void causeway_site_drain(causeway_site* site);
CAUSEWAY_API void causeway_site_cancel(causeway_site* site);

/* Facts for a log: rounds merged and late, bytes up and down, seconds that steps waited. JSON. */
CAUSEWAY_API int causeway_site_summary(const causeway_site* site, char** json,
                                       causeway_error* error);

/* Without leave, the coordinator counts the site as lost when its lease ends. */
CAUSEWAY_API void causeway_site_free(causeway_site* site);

#ifdef __cplusplus
}
#endif
