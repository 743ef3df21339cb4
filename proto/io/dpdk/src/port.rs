//! One Ethernet port: queue pairs, bursts, frames read and written in place.
//!
//! A [`QueuePair`] is a receive queue and a transmit queue that one thread owns. It has its own
//! buffer pool, so queue pairs share nothing.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_uint};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;

use demikernel_dpdk_bindings as ffi;

use crate::DpdkError;
use crate::bounds::lies_within;
use crate::eal::{Eal, error_text, last_error};
use crate::neighbours::Mac;

// Of libdpdk, with the signatures of its headers (rte_ethdev.h, rte_lcore.h); the bindings leave
// these out.
unsafe extern "C" {
    fn rte_eth_dev_stop(port: u16) -> c_int;
    fn rte_eth_dev_close(port: u16) -> c_int;
    fn rte_thread_register() -> c_int;
}

/// Maximum number of frames per call of the driver.
pub const BURST: usize = 32;

/// Number of tries to transmit the rest of a burst into a full ring before it is dropped.
const TRANSMIT_TRIES: u32 = 64;

/// Configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// EAL's index of the port.
    pub port: u16,
    /// Queue pairs, one for each thread that polls.
    pub queues: u16,
    /// Descriptors of every ring.
    pub descriptors: u16,
    /// Packet buffers of every queue pair (about 2.3 KB each). `net_af_xdp` takes 2,048 of them for
    /// its fill ring and another 2,048 in flight, and refuses to start with fewer.
    pub buffers: u32,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            port: 0,
            queues: 1,
            descriptors: 1024,
            buffers: 8191,
        }
    }
}

/// A started port.
#[derive(Debug)]
pub struct EthernetPort {
    /// Its Ethernet address.
    pub mac: Mac,
    /// Largest IPv4 packet in bytes.
    pub mtu_bytes: usize,
    /// The name of its driver.
    pub driver: String,
    /// Queue pairs, one for each thread that polls.
    pub queues: Vec<QueuePair>,
}

impl EthernetPort {
    /// Configures and starts a port.
    ///
    /// # Errors
    /// See [`DpdkError`]; the port stays stopped.
    pub fn start(eal: &Eal, config: &PortConfig) -> Result<Self, DpdkError> {
        let port = config.port;
        let available = eal.port_count();
        if port >= available {
            return Err(DpdkError::NoPort {
                wanted: port,
                available,
            });
        }
        let check = |call: &'static str, code: c_int| {
            if code < 0 {
                Err(DpdkError::Port {
                    port,
                    call,
                    reason: error_text(code),
                })
            } else {
                Ok(())
            }
        };

        // SAFETY: plain data of C; all zero is a valid value.
        let mut info: ffi::rte_eth_dev_info = unsafe { std::mem::zeroed() };
        // SAFETY: `info` outlives the call.
        check("rte_eth_dev_info_get", unsafe {
            ffi::rte_eth_dev_info_get(port, &raw mut info)
        })?;
        let driver = if info.driver_name.is_null() {
            String::new()
        } else {
            // SAFETY: the driver's name is a static NUL-terminated string.
            unsafe { CStr::from_ptr(info.driver_name) }
                .to_string_lossy()
                .into_owned()
        };
        let queue_pairs = info.max_rx_queues.min(info.max_tx_queues);
        if config.queues == 0 || config.queues > queue_pairs {
            return Err(DpdkError::NoQueues {
                port,
                driver,
                wanted: config.queues,
                available: queue_pairs,
            });
        }

        // SAFETY: plain data of C; all zero asks for every default.
        let mut conf: ffi::rte_eth_conf = unsafe { std::mem::zeroed() };
        if config.queues > 1 && info.flow_type_rss_offloads != 0 {
            // One queue needs no hash, and some virtual drivers offer none.
            conf.rxmode.mq_mode = ffi::rte_eth_rx_mq_mode_RTE_ETH_MQ_RX_RSS;
            conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads;
        }
        // SAFETY: `conf` outlives the call.
        check("rte_eth_dev_configure", unsafe {
            ffi::rte_eth_dev_configure(port, config.queues, config.queues, &raw const conf)
        })?;

        // SAFETY: the port exists.
        let socket = unsafe { ffi::rte_eth_dev_socket_id(port) };
        let mut pools = Vec::new();
        for index in 0..config.queues {
            let pool = new_pool(port, index, config.buffers, socket)?;
            // SAFETY: the port is configured with that many queues; null asks for the defaults; the
            // pool lives as long as the process.
            check("rte_eth_rx_queue_setup", unsafe {
                ffi::rte_eth_rx_queue_setup(
                    port,
                    index,
                    config.descriptors,
                    socket as c_uint,
                    ptr::null(),
                    pool,
                )
            })?;
            // SAFETY: as above.
            check("rte_eth_tx_queue_setup", unsafe {
                ffi::rte_eth_tx_queue_setup(
                    port,
                    index,
                    config.descriptors,
                    socket as c_uint,
                    ptr::null(),
                )
            })?;
            pools.push(pool);
        }
        // SAFETY: all queues are set up.
        check("rte_eth_dev_start", unsafe { ffi::rte_eth_dev_start(port) })?;
        let running = Arc::new(RunningPort(port));

        // SAFETY: plain data of C.
        let mut address: ffi::rte_ether_addr = unsafe { std::mem::zeroed() };
        // SAFETY: `address` outlives the call.
        check("rte_eth_macaddr_get", unsafe {
            ffi::rte_eth_macaddr_get(port, &raw mut address)
        })?;
        let mut mtu = 0u16;
        // SAFETY: `mtu` outlives the call.
        check("rte_eth_dev_get_mtu", unsafe {
            ffi::rte_eth_dev_get_mtu(port, &raw mut mtu)
        })?;

        Ok(Self {
            mac: address.addr_bytes,
            mtu_bytes: usize::from(mtu),
            driver,
            queues: pools
                .into_iter()
                .enumerate()
                .map(|(index, pool)| QueuePair::new(Arc::clone(&running), index as u16, pool))
                .collect(),
        })
    }
}

fn new_pool(
    port: u16,
    queue: u16,
    buffers: u32,
    socket: c_int,
) -> Result<*mut ffi::rte_mempool, DpdkError> {
    let name = CString::new(format!("rw_{port}_{queue}")).unwrap_or_default();
    // SAFETY: the name is copied; EAL runs, since the caller holds a port.
    let pool = unsafe {
        ffi::rte_pktmbuf_pool_create(
            name.as_ptr(),
            buffers,
            256.min(buffers / 4),
            0,
            ffi::RTE_MBUF_DEFAULT_BUF_SIZE as u16,
            socket,
        )
    };
    if pool.is_null() {
        return Err(DpdkError::Buffers {
            buffers,
            reason: last_error(),
        });
    }
    Ok(pool)
}

/// Counters of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Frames taken from the driver.
    pub frames_in: u64,
    /// Frames given to the driver.
    pub frames_out: u64,
    /// Received frames in more than one buffer: dropped.
    pub segmented: u64,
    /// Frames dropped because the driver's ring stayed full.
    pub ring_full: u64,
    /// Frames dropped because no buffer was free.
    pub no_buffer: u64,
}

/// Running port. Its driver releases the device when the last queue pair is dropped.
///
/// Frames may outlive it: their memory is a pool's, which lives as long as the process, and they
/// return to that pool without the driver. Drivers whose device writes into the pool (AF_XDP with
/// zero copy) stop the device first.
#[derive(Debug)]
struct RunningPort(u16);

impl Drop for RunningPort {
    fn drop(&mut self) {
        // SAFETY: the port runs, and no queue uses it any more. Stopped, it writes into no buffer;
        // those that frames own are the pool's, which `rte_eth_dev_close` does not free.
        unsafe {
            rte_eth_dev_stop(self.0);
            rte_eth_dev_close(self.0);
        }
    }
}

/// Receive queue and transmit queue of a port, for one thread.
#[derive(Debug)]
pub struct QueuePair {
    port: u16,
    _running: Arc<RunningPort>,
    index: u16,
    pool: *mut ffi::rte_mempool,
    /// Frames written and not yet given to the driver; the first `pending` are set.
    out: [*mut ffi::rte_mbuf; BURST],
    pending: usize,
    counters: QueueCounters,
}

// SAFETY: nothing in a queue depends on the thread; `&mut self` everywhere keeps two threads from
// using one at once, which is all that DPDK asks for.
unsafe impl Send for QueuePair {}

impl QueuePair {
    fn new(running: Arc<RunningPort>, index: u16, pool: *mut ffi::rte_mempool) -> Self {
        Self {
            port: running.0,
            _running: running,
            index,
            pool,
            out: [ptr::null_mut(); BURST],
            pending: 0,
            counters: QueueCounters::default(),
        }
    }

    /// Counters since the start of the port.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Registers the calling thread, which is going to use this queue pair, with EAL. Its packet
    /// buffers then come from a cache instead of the shared pool. Without registration everything
    /// works, at the cost of an atomic operation per buffer.
    ///
    /// # Errors
    /// EAL has no lcore left, or was started for several processes (without `--no-shconf` or
    /// `--in-memory`).
    pub fn register_thread(&self) -> Result<(), DpdkError> {
        // SAFETY: EAL runs, since there is a queue.
        if unsafe { rte_thread_register() } < 0 {
            return Err(DpdkError::Port {
                port: self.port,
                call: "rte_thread_register",
                reason: last_error(),
            });
        }
        Ok(())
    }

    /// Takes up to [`BURST`] frames from the driver. Passes each to `sink`, with this queue pair,
    /// so that replies can be written at once. Returns the number of frames. Never blocks.
    pub fn receive(&mut self, mut sink: impl FnMut(&mut Self, Frame)) -> usize {
        let mut burst = [ptr::null_mut::<ffi::rte_mbuf>(); BURST];
        // SAFETY: the array has room for BURST pointers; the queue is this thread's.
        let count = usize::from(unsafe {
            ffi::rte_eth_rx_burst(self.port, self.index, burst.as_mut_ptr(), BURST as u16)
        });
        self.counters.frames_in += count as u64;
        for &buffer in &burst[..count] {
            match Frame::new(Buffer(buffer)) {
                Some(frame) => sink(self, frame),
                None => self.counters.segmented += 1,
            }
        }
        count
    }

    /// Writes one frame in place: `write` fills the buffer and returns the frame's length, or
    /// `None` for no frame. The frame leaves with the burst: when that is full, or at
    /// [`QueuePair::flush`]. Returns true if a frame was queued.
    pub fn transmit(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        if self.pending == BURST {
            self.flush();
        }
        // SAFETY: the pool is alive as long as the process.
        let buffer = unsafe { ffi::rte_pktmbuf_alloc(self.pool) };
        if buffer.is_null() {
            self.counters.no_buffer += 1;
            return false;
        }
        let mut owned = Buffer(buffer);
        let room = owned.room();
        let limit = room.len();
        let Some(bytes) = write(room).filter(|&bytes| bytes <= limit) else {
            // `owned` returns the buffer to its pool.
            return false;
        };
        owned.set_len(bytes as u16);
        self.out[self.pending] = owned.into_raw();
        self.pending += 1;
        true
    }

    /// Passes the written frames to the driver. Frames that its ring does not take after some tries
    /// are dropped.
    pub fn flush(&mut self) {
        let mut sent = 0;
        let mut tries = 0;
        while sent < self.pending && tries < TRANSMIT_TRIES {
            // SAFETY: the pointers from `sent` to `pending` are buffers that this queue owns; those
            // that the driver takes are its own from then on.
            let taken = usize::from(unsafe {
                ffi::rte_eth_tx_burst(
                    self.port,
                    self.index,
                    self.out.as_mut_ptr().add(sent),
                    (self.pending - sent) as u16,
                )
            });
            sent += taken;
            tries += 1;
            // The ring drains at the line's rate, which takes longer than one call.
            if taken == 0 {
                std::hint::spin_loop();
            }
        }
        self.counters.frames_out += sent as u64;
        self.counters.ring_full += (self.pending - sent) as u64;
        for &buffer in &self.out[sent..self.pending] {
            drop(Buffer(buffer));
        }
        self.pending = 0;
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        for &buffer in &self.out[..self.pending] {
            drop(Buffer(buffer));
        }
    }
}

/// Received frame in its packet buffer, which returns to its pool on drop.
pub struct Frame(Buffer);

impl Frame {
    /// Wraps a frame, or returns `None` if it spans several buffers or claims bytes beyond its own.
    /// Drivers promise that none does; some share the ring with a kernel.
    fn new(buffer: Buffer) -> Option<Self> {
        // SAFETY: the buffer is owned and valid.
        let head = unsafe { &*buffer.0 };
        lies_within(head.nb_segs, head.data_off, head.data_len, head.buf_len)
            .then_some(Self(buffer))
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer is owned and valid; its only segment holds `data_len` bytes at
        // `buf_addr + data_off`, within `buf_len` (`new`), which the driver has written.
        unsafe {
            let buffer = &*self.0.0;
            let start = buffer
                .buf_addr
                .cast::<u8>()
                .add(usize::from(buffer.data_off));
            std::slice::from_raw_parts(start, usize::from(buffer.data_len))
        }
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only access to the buffer.
        unsafe {
            let buffer = &mut *self.0.0;
            let start = buffer
                .buf_addr
                .cast::<u8>()
                .add(usize::from(buffer.data_off));
            std::slice::from_raw_parts_mut(start, usize::from(buffer.data_len))
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Frame({} bytes)", self.len())
    }
}

/// An owned packet buffer.
struct Buffer(*mut ffi::rte_mbuf);

// SAFETY: a buffer has one owner, and its pool takes buffers back from every thread (pools are made
// with the default, multi-producer and multi-consumer, ring).
unsafe impl Send for Buffer {}

impl Buffer {
    /// Space behind the head room of a fresh buffer.
    fn room(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is owned and valid, `buf_len` bytes long, and its memory was written
        // before (pool creation zeroes it), so that it holds initialised bytes.
        unsafe {
            let buffer = &mut *self.0;
            let start = buffer
                .buf_addr
                .cast::<u8>()
                .add(usize::from(buffer.data_off));
            std::slice::from_raw_parts_mut(
                start,
                usize::from(buffer.buf_len.saturating_sub(buffer.data_off)),
            )
        }
    }

    fn set_len(&mut self, bytes: u16) {
        // SAFETY: the buffer is owned and valid; the caller has checked the length.
        unsafe {
            (*self.0).data_len = bytes;
            (*self.0).pkt_len = u32::from(bytes);
        }
    }

    fn into_raw(self) -> *mut ffi::rte_mbuf {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: owned, so freed once.
        unsafe { ffi::rte_pktmbuf_free(self.0) }
    }
}
